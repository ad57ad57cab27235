#include "constraint/choices.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string_view>

namespace quire {
namespace {

// How literals and groups are written.
struct Syntax {
  void (*literal)(std::string& out, std::string_view text);
  std::string_view between;  // alternatives
  bool empty_needs_literal;  // an empty alternative
};

void ebnf_literal(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\')
      out += {'\\', c};
    else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
      out += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));  // four digits, whatever follows
    else
      out += c;
  }
  out += '"';
}

void pattern_literal(std::string& out, std::string_view text) {
  for (const char c : text) {
    if (std::string_view("\\.[](){}*+?^$|/-").find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
}

bool continues_character(char c) {
  return (c & 0xc0) == 0x80;
}

// Sorted, distinct texts whose first `from` bytes are equal: what follows those.
void write_choices(std::string& out, std::span<const std::string> texts, size_t from, const Syntax& syntax) {
  // As far as all go together, up to the beginning of a character.
  size_t common = texts.front().size();
  for (size_t i = from; i < common; ++i)
    if (i >= texts.back().size() || texts.back()[i] != texts.front()[i]) common = i;
  while (common > from && ((common < texts.front().size() && continues_character(texts.front()[common])) ||
                           (common < texts.back().size() && continues_character(texts.back()[common]))))
    --common;
  if (common > from || (texts.size() == 1 && syntax.empty_needs_literal))
    syntax.literal(out, std::string_view(texts.front()).substr(from, common - from));
  if (texts.size() == 1) return;
  out += common > from && syntax.empty_needs_literal ? " (" : "(";
  bool first = true;
  while (!texts.empty()) {
    // Those that go on with the same character.
    size_t end = common + 1;
    const std::string& text = texts.front();
    while (end < text.size() && continues_character(text[end])) ++end;
    size_t count = 1;
    if (text.size() > common) {
      const std::string_view character = std::string_view(text).substr(common, end - common);
      while (count < texts.size() && std::string_view(texts[count]).substr(common).starts_with(character)) ++count;
    }
    if (!first) out += syntax.between;
    first = false;
    write_choices(out, texts.first(count), common, syntax);
    texts = texts.subspan(count);
  }
  out += ')';
}

std::string written(std::vector<std::string> choices, const Syntax& syntax) {
  std::sort(choices.begin(), choices.end());
  choices.erase(std::unique(choices.begin(), choices.end()), choices.end());
  std::string out;
  write_choices(out, choices, 0, syntax);
  return out;
}

}  // namespace

std::string choice_expression(std::vector<std::string> choices) {
  return written(std::move(choices), {ebnf_literal, " | ", true});
}

std::string choice_pattern(std::vector<std::string> choices) {
  return "^(" + written(std::move(choices), {pattern_literal, "|", false}) + ")$";
}

}  // namespace quire
