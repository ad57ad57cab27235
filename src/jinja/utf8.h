// Characters of UTF-8 text, as Python's str sees them. A byte that belongs to no valid sequence counts as one
// character (code 0xDC80 + low seven bits, Python's surrogateescape) and comes back unchanged.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace quire::jinja::utf8 {

struct Char {
  char32_t code;
  std::size_t size;  // bytes
};

Char decode(std::string_view text, std::size_t at);  // requires at < text.size()
void append(std::string& out, char32_t code);

std::size_t length(std::string_view text);  // characters
// Byte offset of character `index`; text.size() when there are fewer.
std::size_t offset(std::string_view text, std::size_t index);
bool is_ascii(std::string_view text);

bool is_space(char32_t c);
bool is_line_break(char32_t c);  // what splitlines() cuts at
bool is_alpha(char32_t c);
bool is_decimal(char32_t c);
bool is_digit(char32_t c);
bool is_numeric(char32_t c);
bool is_alnum(char32_t c);
bool is_upper(char32_t c);
bool is_lower(char32_t c);
bool is_cased(char32_t c);
bool is_printable(char32_t c);
bool is_word(char32_t c);  // \w

std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string title(std::string_view text);  // str.title(): a letter after a non-letter is a capital
std::string capitalize(std::string_view text);
std::string swapcase(std::string_view text);

std::string_view strip_left(std::string_view text);
std::string_view strip_right(std::string_view text);
// Characters of `chars` off either end.
std::string_view strip_left(std::string_view text, std::string_view chars);
std::string_view strip_right(std::string_view text, std::string_view chars);

}  // namespace quire::jinja::utf8
