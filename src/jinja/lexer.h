// Template source -> tokens. Whitespace control (-, +, trim_blocks, lstrip_blocks) happens here, with the
// settings that Hugging Face's chat templates are written for: both on, and one final newline of the source
// dropped.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "jinja/limits.h"

namespace quire::jinja {

enum class TokenKind : std::uint8_t {
  kText,        // literal output
  kPrintBegin,  // {{
  kPrintEnd,    // }}
  kBlockBegin,  // {%
  kBlockEnd,    // %}
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,  // text holds it
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;  // literal text, name, decoded string, digits or operator
  int line = 1;
};

// Fails with TemplateError.
std::vector<Token> tokenize(std::string_view source, const Limits& limits);

}  // namespace quire::jinja
