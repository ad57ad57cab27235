// What is written into grammars comes out as it went in, and what clients write is read as they mean it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <regex>
#include <set>

#include "constraint/choices.h"
#include "constraint/grammar.h"
#include "constraint/pattern_reader.h"
#include "constraint/schema_gate.h"
#include "core/utf8.h"

namespace quire::test {
namespace {

using testing::HasSubstr;
using Json = nlohmann::ordered_json;

class Escapes : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_grammars()) GTEST_SKIP() << "built without XGrammar";
  }
  static const GrammarCompiler& compiler() {
    static const auto kCompiler = [] {
      Vocabulary v;
      for (int i = 0; i < 256; ++i) v.bytes.emplace_back(1, static_cast<char>(i));
      v.bytes.emplace_back();
      v.ends = {256};
      return make_grammar_compiler(v);
    }();
    return *kCompiler;
  }
  static std::shared_ptr<const Grammar> compile(GrammarKind kind, std::string text) {
    return compiler().compile({kind, std::move(text)}, {}).value();
  }
  static std::shared_ptr<const Grammar> compile_schema(const Json& schema) {
    auto gated = gate_schema(schema).value();
    EXPECT_TRUE(gated.unenforced.empty()) << gated.unenforced.front();
    return compile(GrammarKind::kJsonSchema, gated.text);
  }
  static std::string refusal(GrammarKind kind, std::string text) {
    const auto done = compiler().compile({kind, std::move(text)}, {});
    return done.ok() ? "" : done.error().message;
  }
  static bool takes(const Grammar& grammar, std::string_view text) {
    const auto matcher = grammar.begin();
    return matcher->accept_bytes(text) && matcher->completed();
  }
};

// Texts in which an escape is followed by what could be read as part of it.
class Texts {
 public:
  std::string next() {
    std::string text;
    const int length = at_most(1, 6);
    for (int i = 0; i < length; ++i) {
      unicode::append_utf8(character(), text);
      if (at_most(0, 2) == 0) text += "0aBf7\\xu\"'"[at_most(0, 9)];
    }
    return text;
  }
  // Another text than this one.
  std::string changed(std::string text) {
    const std::string before = text;
    while (text == before) {
      text = next();
      if (at_most(0, 1) == 0) text = before + text;
    }
    return text;
  }
  int at_most(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

 private:
  char32_t character() {
    switch (at_most(0, 5)) {
      case 0:
        return static_cast<char32_t>(at_most(0, 0x1f));
      case 1:
        return static_cast<char32_t>(at_most(0x20, 0x7f));
      case 2:
        return static_cast<char32_t>(at_most(0x80, 0x7ff));
      case 3:
        return static_cast<char32_t>(at_most(0x800, 0xd7ff));
      case 4:
        return static_cast<char32_t>(at_most(0xe000, 0xffff));
      default:
        return static_cast<char32_t>(at_most(0x10000, 0x10ffff));
    }
  }
  std::mt19937 random_{20261127};
};

// As the library writes JSON: it escapes DEL as well, which JSON does not ask for.
std::string as_json(const Json& value) {
  std::string text;
  for (const char c : value.dump()) text += c == 0x7f ? "\\u007f" : std::string(1, c);
  return text;
}

constexpr int kRounds = 200, kTexts = 50;  // 10,000 texts

TEST_F(Escapes, ChoicesComeOutAsTheyWentIn) {
  Texts texts;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<std::string> choices(kTexts);
    for (std::string& c : choices) c = texts.next();
    const std::set<std::string> all(choices.begin(), choices.end());
    const auto grammar = compile(GrammarKind::kEbnf, "root ::= " + choice_expression(choices));
    for (const std::string& c : choices) {
      ASSERT_TRUE(takes(*grammar, c)) << Json(c);
      const std::string other = texts.changed(c);
      ASSERT_EQ(takes(*grammar, other), all.contains(other)) << Json(c) << Json(other);
    }
  }
}

TEST_F(Escapes, EnumsComeOutAsTheyWentIn) {
  Texts texts;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<std::string> values(kTexts);
    for (std::string& v : values) v = texts.next();
    const std::set<std::string> all(values.begin(), values.end());
    const auto grammar = compile_schema({{"enum", values}});
    for (const std::string& v : values) {
      ASSERT_TRUE(takes(*grammar, as_json(v))) << Json(v);
      const std::string other = texts.changed(v);
      ASSERT_EQ(takes(*grammar, as_json(other)), all.contains(other)) << Json(v) << Json(other);
    }
  }
}

TEST_F(Escapes, ConstantsComeOutAsTheyWentIn) {
  Texts texts;
  for (int round = 0; round < kRounds; ++round) {
    Json values = Json::array(), schema = {{"type", "array"}, {"prefixItems", Json::array()}, {"items", false}};
    for (int i = 0; i < kTexts; ++i) {
      values.push_back(texts.next());
      schema["prefixItems"].push_back({{"const", values.back()}});
    }
    schema["minItems"] = kTexts;
    const auto grammar = compile_schema(schema);
    ASSERT_TRUE(takes(*grammar, as_json(values))) << values;
    for (int i = 0; i < 10; ++i) {
      Json other = values;
      Json& one = other[static_cast<size_t>(texts.at_most(0, kTexts - 1))];
      one = texts.changed(one.get<std::string>());
      ASSERT_FALSE(takes(*grammar, as_json(other))) << other;
    }
  }
}

// More values than the library compiles as a list are written as a pattern.
TEST_F(Escapes, LongEnumsComeOutAsTheyWentIn) {
  Json values = Json::array();
  for (int i = 0; i < 300; ++i)
    values.push_back(fmt::format("{}{:02x}{}", ".-[/^$"[i % 6], i, std::string("\\x").substr(0, i % 2 == 0 ? 0 : 2)));
  values.push_back("\n0a");
  values.push_back("é41");
  const auto grammar = compile_schema({{"enum", values}});
  for (const Json& v : values) {
    EXPECT_TRUE(takes(*grammar, as_json(v))) << v;
    EXPECT_FALSE(takes(*grammar, as_json(v.get<std::string>() + "~"))) << v;
  }
}

TEST_F(Escapes, TagsComeOutAsTheyWentIn) {
  const std::string begin =
                        "<\x01"
                        "0a>\né4",
                    end =
                        "\x7f"
                        "0";
  const Json tag = {{"type", "structural_tag"},
                    {"format",
                     {{"type", "sequence"},
                      {"elements",
                       {{{"type", "const_string"}, {"value", "\n0a"}},
                        {{"type", "tag"},
                         {"begin", begin},
                         {"content", {{"type", "regex"}, {"pattern", "\\x41\\x0ab"}}},
                         {"end", end}}}}}}};
  const auto grammar = compile(GrammarKind::kStructuralTag, tag.dump());
  EXPECT_TRUE(takes(*grammar, "\n0a" + begin + "A\nb" + end));
  EXPECT_FALSE(takes(*grammar, "\n0" + begin + "A\nb" + end));
  Json unsupported = tag;
  unsupported["format"]["elements"][1]["content"]["pattern"] = "a\\b";
  EXPECT_THAT(refusal(GrammarKind::kStructuralTag, unsupported.dump()), HasSubstr("word boundaries"));
}

struct Case {
  const char *expression, *good, *bad;
};

TEST_F(Escapes, RegularExpressionsAreReadAsTheirWritersMeanThem) {
  for (const Case& c : {
           Case{R"(\x41\x0ab)", "A\nb", "A\u00ab"},
           Case{R"(\x41b)", "Ab", "\u041b"},
           Case{R"([\x41\x0ab]{3})", "b\nA", "A\u00abb"},
           Case{R"(\u0041b)", "Ab", "A"},
           Case{R"(\U0001F600a)", "😀a", "😀"},
           Case{R"(\u{1F600}a)", "😀a", "a"},
           Case{R"(\ud83d\ude00a)", "😀a", "a"},
           Case{R"(\0410)", "!0", "A0"},
           Case{R"(\cJb)", "\nb", "Jb"},
           Case{R"([\^a]+)", "a^", "b"},
           Case{R"([a\]\-z]+)", "]-z", "b"},
           Case{R"([\w-.]+)", "a-.", "/"},
           Case{R"([\s\S]{2})", "\n\xc3\xa9", "a"},
           Case{R"(é+[à-ü]?)", "ééç", "e"},
           Case{R"(a{x})", "a{x}", "a"},
           Case{R"(a{,2}b)", "aab", "aaab"},
           Case{R"(a.c)", "a/c", "a\nc"},
           Case{R"((?s)a.c)", "a\nc", "ac"},
           Case{R"((?i)straSSe É)", "STRASSE é", "strase é"},
           Case{R"((?:a|b)(?P<name>c)(?<n>d)(?#text)e)", "bcde", "bcd"},
           Case{R"(\Aab\Z)", "ab", "Aab"},
           Case{R"(^(?:a$|b\z))", "b", "bz"},
           Case{R"((^a|^b)$)", "b", "^b"},
           Case{R"(\p{Lu}\p{L}*\pN)", "Éte9", "éte9"},
           Case{R"([\p{Ll}\p{Nd}]+)", "ß7", "ẞ7"},
           Case{R"(\P{L}+)", "1-", "1a"},
           Case{R"([^\p{P}\d]+)", "ab", "a."},
           Case{R"(\p{Letter}\p{gc=Nd})", "é4", "44"},
           Case{R"(/\-\"\'\#\ )", "/-\"'# ", "\\"},
           Case{R"(a|)", "", "b"},
       }) {
    const auto grammar = compile(GrammarKind::kRegex, c.expression);
    EXPECT_TRUE(takes(*grammar, c.good)) << c.expression;
    EXPECT_FALSE(takes(*grammar, c.bad)) << c.expression;
    // The canonical form is its own.
    const auto once = std::get<std::string>(canonical_pattern(c.expression));
    EXPECT_EQ(std::get<std::string>(canonical_pattern(once)), once) << c.expression;
  }
}

// Whatever is written there, it ends, and what is canonical stays so.
TEST_F(Escapes, RandomExpressionsHaveOneCanonicalForm) {
  constexpr const char* kParts[] = {"a",    "\\x4",   "\\x41", "[",   "]",   "[^a-",  "(",       ")",       "(?:",
                                    "(?i)", "(?s-i:", "|",     "*",   "+?",  "?",     "{2,}",    "{,3}",    "{",
                                    "}",    "^",      "$",     "\\A", "\\Z", "\\p{L", "\\p{Lu}", "\\P",     "\\d",
                                    "\\W",  ".",      "-",     "\\",  "é",   "😀",     "\\u{1",   "\\ud83d", "\\0",
                                    "\xff", "(?#",    "\\cJ",  "/",   "\"",  "'",     "\n",      "(?P<n>"};
  Texts texts;
  int canonical = 0;
  for (int i = 0; i < 50'000; ++i) {
    std::string pattern;
    for (int parts = texts.at_most(1, 8); parts > 0; --parts)
      pattern += kParts[texts.at_most(0, static_cast<int>(std::size(kParts)) - 1)];
    const auto read = canonical_pattern(pattern);
    if (const auto* const problem = std::get_if<PatternProblem>(&read)) {
      ASSERT_THAT(problem->what, HasSubstr("(at position ")) << pattern;
      continue;
    }
    ++canonical;
    const auto& once = std::get<std::string>(read);
    const auto again = canonical_pattern(once);
    ASSERT_TRUE(std::holds_alternative<std::string>(again)) << pattern << " is " << once;
    ASSERT_EQ(std::get<std::string>(again), once) << pattern;
  }
  EXPECT_GT(canonical, 1000);
}

// Beside the standard library's ECMAScript, for what both know.
TEST_F(Escapes, RandomExpressionsMatchWhatTheyMatchElsewhere) {
  constexpr const char* kAtoms[] = {"a", "b",       "\\x61", "[ab]",   "[^a]",   "\\d",
                                    ".", "(?:a|b)", "(a|)",  "[\\w-]", "\\u0062"};
  constexpr const char* kCounts[] = {"", "", "*", "+", "?", "{2}", "{1,2}", "{2,}", "+?"};
  Texts texts;
  const auto one_of = [&](const auto& all) { return all[texts.at_most(0, static_cast<int>(std::size(all)) - 1)]; };
  int matches = 0;
  for (int i = 0; i < 300; ++i) {
    std::string pattern;
    for (int atoms = texts.at_most(1, 4); atoms > 0; --atoms) {
      pattern += std::string(one_of(kAtoms)) + one_of(kCounts);
      if (texts.at_most(0, 4) == 0) pattern += "|";
    }
    const auto grammar = compile(GrammarKind::kRegex, pattern);
    const std::regex expected(pattern);
    for (int k = 0; k < 40; ++k) {
      std::string text;
      for (int length = texts.at_most(0, 5); length > 0; --length) text += "aab1-"[texts.at_most(0, 4)];
      const bool match = std::regex_match(text, expected);
      matches += match;
      ASSERT_EQ(takes(*grammar, text), match) << pattern << " of " << text;
    }
  }
  EXPECT_GT(matches, 500);
}

TEST_F(Escapes, WhatNoGrammarHoldsToIsRefusedByName) {
  struct Refused {
    const char *expression, *why;
    bool is_unsupported;
  };
  for (const Refused& r : {Refused{"a(?=b)", "lookahead is not supported (at position 2)", true},
                           {"(?<!a)b", "lookbehind", true},
                           {"(a)\\1", "backreferences", true},
                           {"(?P=n)", "backreferences", true},
                           {"\\bword", "word boundaries", true},
                           {"\\p{Greek}", "\\p{Greek} is not supported", true},
                           {"a^b", "'^' stands in the middle", true},
                           {"a\\Ab", "\\A stands in the middle", true},
                           {"a\\Zb", "something follows \\Z", true},
                           {"(a$|b)c", "something follows '$'", true},
                           {"(^a)+", "is repeated", true},
                           {"a++", "possessive", true},
                           {"(?m)^a", "the flag 'm'", true},
                           {"[[:alpha:]]", "classes within classes", true},
                           {"\\q", "there is no escape \\q", false},
                           {"\\x4", "two hexadecimal digits", false},
                           {"\\u004", "four hexadecimal digits", false},
                           {"\\U0001F60", "eight hexadecimal digits", false},
                           {"\\u{110000}", "beyond the characters", false},
                           {"\\ud83d", "half of a surrogate pair", false},
                           {"a(", "a '(' is not closed", false},
                           {"a)", "closes nothing", false},
                           {"[a", "a class of characters is not closed", false},
                           {"[]", "is empty", false},
                           {"[z-a]", "ends below its beginning", false},
                           {"*a", "nothing to repeat", false},
                           {"a{3}{2}", "one repetition follows another", false},
                           {"a{3,2}", "ends below its beginning", false},
                           {"a{9999999999}", "at most 1000000 repetitions", false},
                           {"\xff", "not valid UTF-8", false},
                           {"a\\", "stands at the end", false}}) {
    const auto read = canonical_pattern(r.expression);
    ASSERT_TRUE(std::holds_alternative<PatternProblem>(read)) << r.expression;
    EXPECT_THAT(std::get<PatternProblem>(read).what, HasSubstr(r.why)) << r.expression;
    EXPECT_EQ(std::get<PatternProblem>(read).is_unsupported, r.is_unsupported) << r.expression;
    EXPECT_THAT(refusal(GrammarKind::kRegex, r.expression), HasSubstr(r.why)) << r.expression;
  }
  const std::string deep = std::string(100'000, '(') + std::string(100'000, ')');
  EXPECT_THAT(refusal(GrammarKind::kRegex, deep), HasSubstr("nested more than 250 deep"));
  std::string letters;
  for (int i = 0; i < 10'000; ++i) letters += "\\p{L}";
  EXPECT_THAT(refusal(GrammarKind::kRegex, letters), HasSubstr("too large together"));
  // What is large only while it is read.
  for (const char* part : {"[\\p{L}\\P{L}]", "[\\D\\W\\S\\PN\\PP]"}) {
    std::string everything;
    for (int i = 0; i < 50'000; ++i) everything += part;
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_THAT(refusal(GrammarKind::kRegex, everything), HasSubstr("too large together")) << part;
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5)) << part;
  }
}

TEST_F(Escapes, GrammarsAreReadAsLlamaCppReadsThem) {
  for (const Case& c :
       {Case{R"("x\x0Ab")", "x\nb", "x\u00ab"}, Case{R"("\u00e9f")", "éf", "é"}, Case{R"("\U0001F600f")", "😀f", "f"},
        Case{R"([\x41\x0ab]+)", "b\nA", "A\u00ab"}, Case{R"([\u00e9f]+)", "fé", "e"},
        Case{R"([\x41-\x43b]+)", "ABCb", "D"}, Case{R"("\[\]\"\\")", "[]\"\\", "[]"}}) {
    const auto grammar = compile(GrammarKind::kEbnf, std::string("root ::= ") + c.expression);
    EXPECT_TRUE(takes(*grammar, c.good)) << c.expression;
    EXPECT_FALSE(takes(*grammar, c.bad)) << c.expression;
  }
  for (const char* wrong : {R"("\x4")", R"("\u004")", R"("\U0001F60")", R"("\U00110000")", R"("\ud83d")"})
    EXPECT_THAT(refusal(GrammarKind::kEbnf, std::string("root ::= ") + wrong), HasSubstr("escape")) << wrong;
  EXPECT_THAT(refusal(GrammarKind::kEbnf, std::string("root ::= \"a\"\0 garbage", 22)), HasSubstr("NUL"));
}

TEST_F(Escapes, PatternsOfSchemas) {
  for (const Case& c : {Case{R"(^\x410$)", "\"A0\"", "\"\u0410\""}, Case{R"(^\u00e9a$)", "\"éa\"", "\"é\""},
                        Case{R"(^é.*$)", "\"é, ü\"", "\"é\"x\""}, Case{R"(^[\p{L} ]+$)", "\"Ünal Öz\"", "\"a1\""},
                        Case{R"(\Aab\Z)", "\"ab\"", "\"Aab\""}}) {
    const auto grammar = compile_schema({{"type", "string"}, {"pattern", c.expression}});
    EXPECT_TRUE(takes(*grammar, c.good)) << c.expression;
    EXPECT_FALSE(takes(*grammar, c.bad)) << c.expression;
  }
  // A string of JSON has no quotes and backslashes as they are: what cannot be without them is told.
  for (const char* pattern : {R"(^"a"$)", R"(^a\\b$)", R"(^a\nb$)"}) {
    const auto done =
        compile(GrammarKind::kJsonSchema, fmt::format(R"({{"type":"string","pattern":{}}})", Json(pattern).dump()));
    EXPECT_THAT(done->unenforced(), testing::ElementsAre(HasSubstr("needs a character that JSON escapes"))) << pattern;
    EXPECT_TRUE(takes(*done, R"("a\"b")")) << pattern;
    EXPECT_FALSE(takes(*done, R"(""a"")")) << pattern;
  }
  // What no grammar holds a text to is left out and told; what is no expression is refused.
  const auto told = gate_schema(Json::parse(R"({"type":"string","pattern":"^(?!x)\\w+$"})")).value();
  EXPECT_EQ(Json::parse(told.text), Json({{"type", "string"}}));
  EXPECT_THAT(told.unenforced, testing::ElementsAre(HasSubstr("#: 'pattern' (lookahead is not supported")));
  const auto names = gate_schema(Json::parse(R"({"type":"object","patternProperties":{"\\bx":{}}})")).value();
  EXPECT_THAT(names.unenforced, testing::ElementsAre(HasSubstr("'patternProperties' (word boundaries")));
  EXPECT_THAT(gate_schema(Json::parse(R"({"properties":{"a":{"type":"string","pattern":"a("}}})")).error().message,
              HasSubstr("#/properties/a: 'pattern' is no regular expression: a '(' is not closed"));
}

}  // namespace
}  // namespace quire::test
