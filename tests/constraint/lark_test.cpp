// Grammars as Lark writes them.
#include "constraint/lark.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "constraint/grammar.h"

namespace quire::test {
namespace {

using testing::HasSubstr;

class Lark : public testing::Test {
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
  static void expect(const std::string& grammar, std::initializer_list<const char*> good,
                     std::initializer_list<const char*> bad) {
    const auto compiled = compiler().compile({GrammarKind::kEbnf, grammar}, {});
    ASSERT_TRUE(compiled.ok()) << grammar << "\n" << compiled.error().message;
    const auto takes = [&](std::string_view text) {
      const auto matcher = (*compiled)->begin();
      return matcher->accept_bytes(text) && matcher->completed();
    };
    for (const char* text : good) EXPECT_TRUE(takes(text)) << grammar << "\n" << text;
    for (const char* text : bad) EXPECT_FALSE(takes(text)) << grammar << "\n" << text;
  }
  static std::string refusal(const std::string& grammar) {
    const auto done = compiler().compile({GrammarKind::kEbnf, grammar}, {});
    return done.ok() ? "" : done.error().message;
  }
};

TEST(LarkSyntax, IsToldFromEbnf) {
  EXPECT_TRUE(is_lark("start: \"a\""));
  EXPECT_TRUE(is_lark("// ::= is no part of this\nstart: A # ::=\nA: \"a\""));
  EXPECT_FALSE(is_lark("root ::= \"a\""));
  EXPECT_FALSE(is_lark("# a grammar\n\nroot ::= start\nstart ::= \"http://x: y\""));
  EXPECT_FALSE(is_lark("root\n  ::= \"a\""));
}

TEST_F(Lark, RulesTerminalsAndRepetitions) {
  expect("start: a | \"x\" b?\n  | c~2..3 -> named\na: \"a\"+\n?b: \"b\"*\n!c: [\"c\"] \"d\"",
         {"a", "aaa", "x", "xbb", "dcd", "cdcdcd"}, {"", "b", "d", "cdcdcdcd"});
  expect("start: (\"a\" | \"b\" \"c\")~2 END\nEND: \"!\"", {"aa!", "abc!", "bcbc!"}, {"a!", "aaa!", "ab!"});
  expect("start: \"a\"..\"f\" \"é\"..\"ü\"", {"aé", "fü"}, {"gé", "az"});
  expect("start: item (\",\" item)*\nitem.2: WORD | \"(\" start \")\"\nWORD.-1: /[a-z]+/", {"a,(b,(c)),d"},
         {"a,(b", ","});
}

TEST_F(Lark, TextsAndExpressions) {
  expect(R"(start: "x\x0Ab" "\u00e9f" "\t\"\\" "\U0001F600")", {"x\nbéf\t\"\\😀"}, {"x\u00abéf\t\"\\😀"});
  expect("start: \"select\"i \" \" \"ÉTÉ\"i", {"SeLeCt été", "select ÉtÉ"}, {"selec été", "select ete"});
  expect(R"(start: /a\/b[\/.]+/i /\x41\x0ab/ /./s)", {"A/B/.A\nb\n", "a/b.A\nbx"}, {"a/bA\nbx", "a/b/A\u00abx"});
  expect("start: /\\p{Lu}\\w*/ // a comment: \"not closed\n", {"Éa_1"}, {"a"});
  expect("start: /a.b/", {"a-b"}, {"a\nb"});
  expect("start: \"a\" /(?i)/ \"b\"", {"ab"}, {"a"});
}

TEST_F(Lark, CommonTerminals) {
  expect(
      "start: NUMBER \" \" SIGNED_INT \" \" ESCAPED_STRING\n%import common.NUMBER\n"
      "%import common (SIGNED_INT, ESCAPED_STRING)",
      {"1.5e3 -2 \"a\\\"b\"", "7 +4 \"\""}, {"x 1 \"\"", "1 1 \"a"});
  expect("start: NAME NL\n%import common.CNAME -> NAME\n%import common.NEWLINE -> NL", {"_a1\n", "b\r\n\n"},
         {"1a\n", "a"});
  expect(
      "start: WORD DIGIT LETTER INT\n%import common.WORD\n%import common.DIGIT\n%import common.LETTER\n"
      "%import common.INT",
      {"ab1c23"}, {"1ab"});
}

// Between tokens, and not within them.
TEST_F(Lark, IgnoredTerminalsStandBetweenTokens) {
  expect("start: \"let\" NAME \"=\" NAME\nNAME: /[a-z]+/\n%import common.WS\n%ignore WS",
         {"let a = b", "leta=b", "let a\n=\tb"}, {"l et a=b", "let a b"});
}

TEST_F(Lark, SumsAsTheManualHasThem) {
  const std::string grammar = R"lark(
      ?start: sum
      ?sum: product
          | sum "+" product   -> add
          | sum "-" product   -> sub
      ?product: atom
          | product "*" atom  -> mul
      ?atom: NUMBER           -> number
          | "-" atom          -> neg
          | "(" sum ")"
      %import common.NUMBER
      %import common.WS_INLINE
      %ignore WS_INLINE
  )lark";
  expect(grammar, {"1+2*3", "-(1 - 2) * 3.5", "((1))"}, {"1+", "(1", "1 2"});
}

TEST_F(Lark, WhatCannotBeTranslatedIsRefusedByName) {
  struct Case {
    const char *grammar, *says;
  };
  for (const Case& c :
       {Case{"start: a{\"x\"}\na{x}: x", "templates"}, Case{"start: A\n%declare A", "%declare"},
        Case{"start: A\n%override A: \"a\"", "%override"}, Case{"%import .other.A\nstart: A", "line 1"},
        Case{"start: A\n%import common.NOTHING -> A", "common.NOTHING"}, Case{"start: a", "unknown name 'a'"},
        Case{"other: \"a\"", "no start rule"},
        Case{"start: \"a\"\n\nb: /(?=x)/", "line 3: a regular expression cannot be used: lookahead"},
        Case{"start: /a/m", "line 1: a regular expression cannot be used: the flag 'm'"},
        Case{"start: \"a\n", "line 1: a \" is not closed"}, Case{"start: \"\\x4\"", "there is no escape \\x"},
        Case{"start: \"\\ud800\"", "no character"}, Case{"start: <|im_end|>", "'<' is no part of Lark"},
        Case{"start: %json {\"type\": \"object\"}", "'%json' is no part of Lark"},
        Case{"start: \"a\"\nstart: \"b\"", "duplicate"}, Case{"start: A\nA: B\nB: A", "circular"},
        Case{"root = 5", "the grammar cannot be used"}})
    EXPECT_THAT(refusal(c.grammar), HasSubstr(c.says)) << c.grammar;
}

TEST_F(Lark, HostileGrammarsEnd) {
  EXPECT_THAT(refusal("start: " + std::string(100'000, '(') + "\"a\"" + std::string(100'000, ')')),
              HasSubstr("nested"));
  std::string chain = "start: T0\n";
  for (int i = 0; i < 50'000; ++i) chain += fmt::format("T{}: T{}\n", i, i + 1);
  EXPECT_THAT(refusal(chain), HasSubstr("more than 2000 terminals"));
  EXPECT_THAT(refusal(std::string("start: \"a\"\0 b", 13)), HasSubstr("NUL"));
}

}  // namespace
}  // namespace quire::test
