// The little of Unicode that byte-level BPE needs: UTF-8, five character classes, and NFC.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace quire::unicode {

// Bits of a code point's class. Unassigned code points and those above U+10FFFF have none.
inline constexpr uint8_t kLetter = 1;      // general category L*
inline constexpr uint8_t kNumber = 2;      // general category N*
inline constexpr uint8_t kMark = 4;        // general category M*
inline constexpr uint8_t kSpace = 8;       // White_Space: 25 code points
inline constexpr uint8_t kNfcActive = 16;  // NFC may change it, or it may join with what stands before it

// One byte per code point, of Unicode 16.0: utf8proc's data and a list of what is newer. Built on first use (some
// 20 ms). Take the object once, then index it.
class ClassTable {
 public:
  static const ClassTable& get();
  uint8_t operator[](char32_t c) const { return c < kSize ? bits_[c] : 0; }

 private:
  ClassTable();
  static constexpr char32_t kSize = 0x110000;
  std::string storage_;
  const uint8_t* bits_;
};

enum class Utf8 : uint8_t {
  kValid,
  kInvalid,    // the first `length` bytes can belong to no character
  kTruncated,  // all bytes given begin a character that needs more
};
struct Decoded {
  char32_t code_point;  // U+FFFD unless valid
  uint8_t length;  // bytes; when invalid, the longest prefix that could have begun a character (at least 1)
  Utf8 status;
};

// The character at the front of `bytes`, which must not be empty. Strict (RFC 3629): no overlong forms, no
// surrogates.
Decoded decode(std::string_view bytes);

// Appends the code points of `bytes`; every byte that belongs to no valid character becomes one U+FFFD.
void append_code_points(std::string_view bytes, std::u32string& out);
void append_utf8(char32_t c, std::string& out);
constexpr std::size_t utf8_length(char32_t c) {
  return c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
}

bool is_valid_utf8(std::string_view bytes);

// Valid UTF-8 from any bytes: each longest prefix of a character that is not completed becomes one U+FFFD, as
// browsers, Python (errors="replace") and Rust (from_utf8_lossy) do.
std::string replace_invalid(std::string_view bytes);

// Normalization Form C, in place. O(n log n) for any input.
void nfc(std::u32string& text);

}  // namespace quire::unicode
