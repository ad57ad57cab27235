#include "constraint/grammar.h"

namespace quire {

std::string_view describe(GrammarKind kind) {
  switch (kind) {
    case GrammarKind::kJsonObject:
      return "the grammar of JSON";
    case GrammarKind::kJsonSchema:
      return "the JSON schema";
    case GrammarKind::kRegex:
      return "the regular expression";
    case GrammarKind::kEbnf:
      return "the grammar";
    case GrammarKind::kStructuralTag:
      return "the structural tag";
  }
  return "the grammar";
}

}  // namespace quire
