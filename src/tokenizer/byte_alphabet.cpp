#include "tokenizer/byte_alphabet.h"

#include "tokenizer/unicode.h"

namespace quire {

ByteAlphabet::ByteAlphabet() {
  bytes_.fill(-1);
  char32_t next = 0x100;
  for (int b = 0; b < 256; ++b) {
    const bool prints = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    const char32_t c = prints ? static_cast<char32_t>(b) : next++;
    unicode::append_utf8(c, letters_[static_cast<std::size_t>(b)]);
    bytes_[c] = static_cast<int16_t>(b);
  }
}

const ByteAlphabet& ByteAlphabet::get() {
  static const ByteAlphabet alphabet;
  return alphabet;
}

std::string ByteAlphabet::encode(std::string_view bytes) const {
  std::string out;
  out.reserve(2 * bytes.size());
  for (const char b : bytes) out += letter(static_cast<uint8_t>(b));
  return out;
}

std::optional<std::string> ByteAlphabet::decode(std::string_view text) const {
  std::string out;
  while (!text.empty()) {
    const unicode::Decoded d = unicode::decode(text);
    if (d.status != unicode::Utf8::kValid || d.code_point >= bytes_.size() || bytes_[d.code_point] < 0) return {};
    out.push_back(static_cast<char>(bytes_[d.code_point]));
    text.remove_prefix(d.length);
  }
  return out;
}

}  // namespace quire
