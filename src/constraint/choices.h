// Many texts of which one is wanted, as a grammar that compiles in time that grows with their length alone: what
// several begin with stands in it once.
#pragma once

#include <string>
#include <vector>

namespace quire {

// The expression of a rule of GrammarKind::kEbnf. `choices` is not empty.
std::string choice_expression(std::vector<std::string> choices);
// A regular expression that matches these texts as a whole.
std::string choice_pattern(std::vector<std::string> choices);

}  // namespace quire
