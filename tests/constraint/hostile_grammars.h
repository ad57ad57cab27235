// Grammars within the limits of their size that are made to end, fill or hold up whoever compiles them.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "constraint/grammar.h"

namespace quire::test {

struct HostileGrammar {
  std::string name;
  GrammarSpec spec;
};

inline std::string repeated(std::string_view text, int count) {
  std::string all;
  all.reserve(text.size() * static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

// Definitions d0, d1, ... of which each leads to the next one; the last is a string, or the first again.
inline std::string chained(int count, const std::string& before, const std::string& after, bool ring = false) {
  std::string s = R"({"$ref":"#/$defs/d0","$defs":{)";
  for (int i = 0; i < count; ++i)
    s += fmt::format(R"("d{}":{}{{"$ref":"#/$defs/d{}"}}{},)", i, before, i + 1 == count && ring ? 0 : i + 1, after);
  return s + fmt::format(R"("d{}":{{"type":"string"}}}}}})", count);
}

inline std::vector<HostileGrammar> hostile_grammars() {
  std::vector<HostileGrammar> all;
  const auto add = [&](std::string name, GrammarKind kind, std::string text) {
    all.push_back({std::move(name), {kind, std::move(text), false}});
  };
  using enum GrammarKind;
  add("a chain of references", kJsonSchema, chained(16'000, "", ""));
  add("items within items", kJsonSchema, chained(15'000, R"({"type":"array","items":)", "}"));
  add("properties within properties", kJsonSchema,
      chained(12'000, R"({"type":"object","required":["a"],"properties":{"a":)", "}}"));
  add("alternatives within alternatives", kJsonSchema, chained(10'000, R"({"anyOf":[{"type":"null"},)", "]}"));
  add("a ring of references", kJsonSchema, chained(14'000, "", "", true));
  const std::string within = R"({"type":"structural_tag","format":{"type":"json_schema","json_schema":)";
  add("a tag with a chain of references", kStructuralTag, within + chained(16'000, "", "") + "}}");
  add("a tag with a pattern nested deep", kStructuralTag,
      R"({"type":"structural_tag","format":{"type":"regex","pattern":")" + std::string(100'000, '(') + "a" +
          std::string(100'000, ')') + "\"}}");
  add("groups within groups", kRegex, std::string(100'000, '(') + "a" + std::string(100'000, ')'));
  add("open groups", kRegex, std::string(100'000, '('));
  add("a schema with groups within groups", kJsonSchema,
      R"({"type":"string","pattern":")" + std::string(100'000, '(') + std::string(100'000, ')') + "\"}");
  add("300,000 optional letters", kRegex, repeated("a?", 300'000));
  add("20,000 optional letters", kRegex, repeated("a?", 20'000));
  add("100,000 optional groups", kRegex, repeated("(ab)?", 100'000));
  add("3,000 times anything", kRegex, repeated(".*", 3'000));
  const std::string pattern = repeated("[a-z]{2}", 37'500);
  std::string places = R"({"type":"object","properties":{)";
  for (int i = 0; i < 2000; ++i) places += fmt::format(R"({}"p{}":{{"$ref":"#/$defs/p"}})", i == 0 ? "" : ",", i);
  add("one pattern in 2,000 places", kJsonSchema,
      places + R"(},"$defs":{"p":{"type":"string","pattern":")" + pattern + "\"}}}");
  std::string rules, left;
  for (int i = 0; i < 45'000; ++i) rules += fmt::format("r{}::=\"a\"r{}\n", i, i + 1);
  add("a chain of 45,000 rules", kEbnf, "root ::= r0\n" + rules + "r45000 ::= \"b\"\n");
  for (int i = 0; i < 2'000; ++i) left += fmt::format("r{} ::= r{} \"a\" | \"b\"\n", i, (i + 1) % 2'000);
  add("left recursion over 2,000 rules", kEbnf, "root ::= r0\n" + left);
  add("parentheses within parentheses", kEbnf,
      "root ::= " + std::string(200'000, '(') + "\"a\"" + std::string(200'000, ')'));
  return all;
}

}  // namespace quire::test
