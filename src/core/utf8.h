// UTF-8, character by character.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace quire::unicode {

inline constexpr char32_t kReplacement = 0xFFFD;

enum class Utf8 : uint8_t {
  kValid,
  kInvalid,    // the first `length` bytes can belong to no character
  kTruncated,  // all bytes given begin a character that needs more
};
struct Decoded {
  char32_t code_point;  // U+FFFD unless valid
  uint8_t length;       // bytes; when invalid, the longest prefix that could have begun a character (at least 1)
  Utf8 status;
};

// The character at the front of `bytes`, which must not be empty. Strict (RFC 3629): no overlong forms, no
// surrogates.
inline Decoded decode(std::string_view bytes) {
  const auto byte = [&](std::size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return {first, 1, Utf8::kValid};
  if (first < 0xC2 || first > 0xF4) return {kReplacement, 1, Utf8::kInvalid};
  const int length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  // Overlong forms, surrogates and values above U+10FFFF all show in the second byte.
  const uint8_t low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const uint8_t high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  char32_t c = first & (0x7F >> length);
  for (int i = 1; i < length; ++i) {
    const auto seen = static_cast<uint8_t>(i);
    if (static_cast<std::size_t>(i) >= bytes.size()) return {kReplacement, seen, Utf8::kTruncated};
    const uint8_t b = byte(i);
    if (b < (i == 1 ? low : 0x80) || b > (i == 1 ? high : 0xBF)) return {kReplacement, seen, Utf8::kInvalid};
    c = (c << 6) | (b & 0x3F);
  }
  return {c, static_cast<uint8_t>(length), Utf8::kValid};
}

constexpr std::size_t utf8_length(char32_t c) {
  return c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
}

inline void append_utf8(char32_t c, std::string& out) {
  if (c < 0x80) {
    out.push_back(static_cast<char>(c));
    return;
  }
  const std::size_t length = utf8_length(c);
  constexpr uint8_t kLead[] = {0, 0, 0xC0, 0xE0, 0xF0};
  out.push_back(static_cast<char>(kLead[length] | (c >> (6 * (length - 1)))));
  for (std::size_t i = length - 1; i-- > 0;) out.push_back(static_cast<char>(0x80 | ((c >> (6 * i)) & 0x3F)));
}

}  // namespace quire::unicode
