#include "core/escape.h"

#include <fmt/format.h>

#include "core/utf8.h"

namespace quire {
namespace {

constexpr std::string_view kGap = " ... ";  // where something was left out

// Marks and overrides of the direction, separators of lines and paragraphs, and what is no character.
bool is_hidden(char32_t c) {
  return c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0x61c || c == 0x200e || c == 0x200f ||
         (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069) || c == 0xfeff || (c >= 0xe0000 && c <= 0xe007f);
}

void append_escaped(char32_t c, std::string& out) {
  if (c == '\n')
    out += "\\n";
  else if (c == '\t')
    out += "\\t";
  else if (is_hidden(c) && c < 0x10000)
    out += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
  else if (is_hidden(c))
    out += fmt::format("\\U{:08x}", static_cast<uint32_t>(c));
  else
    unicode::append_utf8(c, out);
}

std::string escape_all(std::string_view text) {
  std::string out;
  for (; !text.empty(); text.remove_prefix(unicode::decode(text).length))
    append_escaped(unicode::decode(text).code_point, out);
  return out;
}

// Escapes from the front of `text` while `max_bytes` last, and takes it off.
std::string take_head(std::string_view& text, size_t max_bytes) {
  std::string out;
  while (!text.empty()) {
    const unicode::Decoded d = unicode::decode(text);
    const size_t before = out.size();
    append_escaped(d.code_point, out);
    if (out.size() > max_bytes) {
      out.resize(before);
      break;
    }
    text.remove_prefix(d.length);
  }
  return out;
}

// The same from the end.
std::string tail_of(std::string_view text, size_t max_bytes) {
  const auto continues = [&](size_t i) { return (static_cast<unsigned char>(text[i]) & 0xc0) == 0x80; };
  size_t begin = text.size();
  for (size_t bytes = 0; begin > 0;) {
    size_t before = begin - 1;
    while (before > 0 && begin - before < 4 && continues(before)) --before;
    bytes += escape_all(text.substr(before, begin - before)).size();
    if (bytes > max_bytes) break;
    begin = before;
  }
  return escape_all(text.substr(begin));
}

}  // namespace

std::string escaped(std::string_view text, size_t max_bytes) {
  if (max_bytes == 0) return escape_all(text);
  std::string_view rest = text;
  std::string out = take_head(rest, max_bytes);
  if (rest.empty()) return out;
  const size_t tail = max_bytes / 3;
  rest = text;
  out = take_head(rest, max_bytes - tail);
  return out + std::string(kGap) + tail_of(rest, tail);
}

}  // namespace quire
