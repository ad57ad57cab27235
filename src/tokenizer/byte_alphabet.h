// The alphabet in which byte-level BPE vocabularies write bytes: printable Latin-1 stands for itself, the
// other 68 bytes are U+0100..U+0143 in order, so that a space is "Ġ" and a line feed "Ċ" (the GPT-2 map).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace quire {

// C0, C1 and F5..FF occur in no valid UTF-8, and text is made valid before it is encoded.
constexpr bool occurs_in_utf8(int byte) {
  return byte < 0xC0 || (byte >= 0xC2 && byte <= 0xF4);
}

class ByteAlphabet {
 public:
  static const ByteAlphabet& get();

  // The letter for a byte, in UTF-8 (one or two bytes).
  std::string_view letter(uint8_t byte) const { return letters_[byte]; }
  std::string encode(std::string_view bytes) const;
  // The bytes that `text` spells, or nothing if a character is not a letter of the alphabet.
  std::optional<std::string> decode(std::string_view text) const;

 private:
  ByteAlphabet();
  std::array<std::string, 256> letters_;
  std::array<int16_t, 0x144> bytes_;  // by code point; -1: no letter
};

}  // namespace quire
