// The little of Unicode that tokenizers need: UTF-8 (core/utf8.h), character classes, and NFC.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/utf8.h"

namespace quire::unicode {

// Bits of a code point's class. Unassigned code points and those above U+10FFFF have none.
inline constexpr uint8_t kLetter = 1;      // general category L*
inline constexpr uint8_t kNumber = 2;      // general category N*
inline constexpr uint8_t kMark = 4;        // general category M*
inline constexpr uint8_t kSpace = 8;       // White_Space: 25 code points
inline constexpr uint8_t kNfcActive = 16;  // NFC may change it, or it may join with what stands before it
inline constexpr uint8_t kUpper = 32;      // of letters: general category Lu or Lt
inline constexpr uint8_t kLower = 64;      // of letters: general category Ll

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

// Appends the code points of `bytes`; every byte that belongs to no valid character becomes one U+FFFD.
void append_code_points(std::string_view bytes, std::u32string& out);

bool is_valid_utf8(std::string_view bytes);

// Valid UTF-8 from any bytes: each longest prefix of a character that is not completed becomes one U+FFFD, as
// browsers, Python (errors="replace") and Rust (from_utf8_lossy) do.
std::string replace_invalid(std::string_view bytes);

// The same with one U+FFFD for each byte that belongs to no valid character, as SentencePiece does.
std::string replace_invalid_bytes(std::string_view bytes);

// Bytes of the white space (White_Space of Unicode) that a text begins and ends with.
std::size_t leading_space(std::string_view text);
std::size_t trailing_space(std::string_view text);

// Normalization Form C, in place. Linear in the text, whatever it is.
void nfc(std::u32string& text);

}  // namespace quire::unicode
