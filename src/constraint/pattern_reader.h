// Regular expressions as clients write them: what Python's re and ECMA-262 agree on, and where they do not, what only
// one of them knows. The library that compiles them reads some of these escapes in other ways, or as letters; so each
// expression is read here, and written anew in the few words that mean one thing everywhere.
#pragma once

#include <string>
#include <string_view>
#include <variant>

namespace quire {

// Why there is no canonical form.
struct PatternProblem {
  std::string what;  // with the position, from 1
  // It is a regular expression, but one that no grammar holds a text to (lookahead, backreferences): where a schema is
  // not strict, its pattern may be left out and told.
  bool is_unsupported = false;
};

// An expression of ASCII characters that matches the same texts: literals, classes, groups without names or flags, the
// quantifiers *, +, ?, {n}, {n,} and {n,m}, one '^' at the beginning and one '$' at the end where they stood there. A
// character that ASCII does not print is \u{...}. `.` is every character but a line break, \d, \s and \w are ASCII, \p
// knows general categories. A canonical expression is its own canonical form. Any thread; time and memory grow with the
// expression, and its canonical form is bounded.
std::variant<std::string, PatternProblem> canonical_pattern(std::string_view pattern);

}  // namespace quire
