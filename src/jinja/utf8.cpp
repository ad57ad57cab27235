#include "jinja/utf8.h"

#include <utf8proc.h>

#include <vector>

namespace quire::jinja::utf8 {
namespace {

constexpr char32_t kEscaped = 0xDC00;  // + byte (0x80..0xFF)

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

void append_upper(std::string& out, char32_t c) {
  if (c == 0xDF) {  // the one common letter whose capital is two
    out += "SS";
    return;
  }
  append(out, static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))));
}
void append_title(std::string& out, char32_t c) {
  if (c == 0xDF) {
    out += "Ss";
    return;
  }
  append(out, static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c))));
}
void append_lower(std::string& out, char32_t c) {
  append(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
}

// A capital sigma at the end of a word becomes the final form: a cased letter before it, none after.
void append_lower_in(std::string& out, std::string_view text, std::size_t at, const Char& c, bool cased_before) {
  if (c.code != 0x3A3) return append_lower(out, c.code);
  const std::size_t after = at + c.size;
  const bool cased_after = after < text.size() && is_cased(decode(text, after).code);
  append(out, cased_before && !cased_after ? 0x3C2 : 0x3C3);
}

}  // namespace

Char decode(std::string_view text, std::size_t at) {
  const auto first = static_cast<unsigned char>(text[at]);
  if (first < 0x80) return {first, 1};
  utf8proc_int32_t code = -1;
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + at;
  const auto size = utf8proc_iterate(bytes, static_cast<utf8proc_ssize_t>(text.size() - at), &code);
  if (size <= 0 || code < 0) return {kEscaped + first, 1};
  return {static_cast<char32_t>(code), static_cast<std::size_t>(size)};
}

void append(std::string& out, char32_t code) {
  if (code < 0x80) {
    out.push_back(static_cast<char>(code));
  } else if (code >= kEscaped + 0x80 && code <= kEscaped + 0xFF) {
    out.push_back(static_cast<char>(code - kEscaped));
  } else {
    utf8proc_uint8_t bytes[4];
    const auto size = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code), bytes);
    out.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(size));
  }
}

bool is_ascii(std::string_view text) {
  unsigned char all = 0;
  for (const char c : text) all |= static_cast<unsigned char>(c);
  return all < 0x80;
}

std::size_t length(std::string_view text) {
  if (is_ascii(text)) return text.size();
  std::size_t count = 0;
  for (std::size_t at = 0; at < text.size(); at += decode(text, at).size) ++count;
  return count;
}

std::size_t offset(std::string_view text, std::size_t index) {
  std::size_t at = 0;
  while (index > 0 && at < text.size()) {
    at += decode(text, at).size;
    --index;
  }
  return at;
}

bool is_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x1F);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
         c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_line_break(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

bool is_alpha(char32_t c) {
  const auto k = category(c);
  return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}
bool is_decimal(char32_t c) {
  return category(c) == UTF8PROC_CATEGORY_ND;
}
bool is_digit(char32_t c) {
  return is_decimal(c) || c == 0xB2 || c == 0xB3 || c == 0xB9 || c == 0x2070 || (c >= 0x2074 && c <= 0x2079) ||
         (c >= 0x2080 && c <= 0x2089) || (c >= 0x2460 && c <= 0x2468);
}
bool is_numeric(char32_t c) {
  const auto k = category(c);
  return k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO;
}
bool is_alnum(char32_t c) {
  return is_alpha(c) || is_numeric(c);
}
bool is_upper(char32_t c) {
  return category(c) == UTF8PROC_CATEGORY_LU;
}
bool is_lower(char32_t c) {
  return category(c) == UTF8PROC_CATEGORY_LL || c == 0xAA || c == 0xBA;
}
bool is_cased(char32_t c) {
  return is_upper(c) || is_lower(c) || category(c) == UTF8PROC_CATEGORY_LT;
}
bool is_word(char32_t c) {
  return c == '_' || is_alnum(c);
}

bool is_printable(char32_t c) {
  if (c < 0x80) return c >= 0x20 && c < 0x7F;
  switch (category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

std::string upper(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const Char c = decode(text, at);
    append_upper(out, c.code);
    at += c.size;
  }
  return out;
}

std::string lower(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  bool cased_before = false;
  for (std::size_t at = 0; at < text.size();) {
    const Char c = decode(text, at);
    append_lower_in(out, text, at, c, cased_before);
    cased_before = is_cased(c.code);
    at += c.size;
  }
  return out;
}

std::string title(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  bool in_word = false;
  for (std::size_t at = 0; at < text.size();) {
    const Char c = decode(text, at);
    in_word ? append_lower_in(out, text, at, c, true) : append_title(out, c.code);
    in_word = is_cased(c.code);
    at += c.size;
  }
  return out;
}

std::string capitalize(std::string_view text) {
  if (text.empty()) return {};
  const Char first = decode(text, 0);
  std::string out;
  append_title(out, first.code);
  bool cased_before = is_cased(first.code);
  for (std::size_t at = first.size; at < text.size();) {
    const Char c = decode(text, at);
    append_lower_in(out, text, at, c, cased_before);
    cased_before = is_cased(c.code);
    at += c.size;
  }
  return out;
}

std::string swapcase(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const Char c = decode(text, at);
    is_upper(c.code) ? append_lower(out, c.code) : append_upper(out, c.code);
    at += c.size;
  }
  return out;
}

std::string_view strip_left(std::string_view text) {
  while (!text.empty()) {
    const Char c = decode(text, 0);
    if (!is_space(c.code)) break;
    text.remove_prefix(c.size);
  }
  return text;
}

namespace {
// Start of the last character. Walks back over at most three continuation bytes.
std::size_t last_char(std::string_view text) {
  const std::size_t floor = text.size() > 4 ? text.size() - 4 : 0;
  std::size_t at = text.size() - 1;
  for (std::size_t i = at;; --i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) {
      if (i + decode(text, i).size == text.size()) at = i;
      break;
    }
    if (i == floor) break;
  }
  return at;
}

template <class Drop>
std::string_view strip_right_if(std::string_view text, Drop drop) {
  while (!text.empty()) {
    const std::size_t at = last_char(text);
    if (!drop(decode(text, at).code)) break;
    text = text.substr(0, at);
  }
  return text;
}

std::vector<char32_t> codes(std::string_view chars) {
  std::vector<char32_t> out;
  for (std::size_t at = 0; at < chars.size();) {
    const Char c = decode(chars, at);
    out.push_back(c.code);
    at += c.size;
  }
  return out;
}
bool contains(const std::vector<char32_t>& set, char32_t c) {
  for (const char32_t s : set) {
    if (s == c) return true;
  }
  return false;
}
}  // namespace

std::string_view strip_right(std::string_view text) {
  return strip_right_if(text, [](char32_t c) { return is_space(c); });
}

std::string_view strip_left(std::string_view text, std::string_view chars) {
  const auto set = codes(chars);
  while (!text.empty()) {
    const Char c = decode(text, 0);
    if (!contains(set, c.code)) break;
    text.remove_prefix(c.size);
  }
  return text;
}

std::string_view strip_right(std::string_view text, std::string_view chars) {
  const auto set = codes(chars);
  return strip_right_if(text, [&](char32_t c) { return contains(set, c); });
}

}  // namespace quire::jinja::utf8
