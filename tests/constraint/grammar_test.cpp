// Matchers and masks, what compiling may take, and the cache.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "constraint/choices.h"
#include "constraint/constrained_output.h"
#include "constraint/grammar_cache.h"
#include "core/heap.h"

namespace quire::test {
namespace {

using testing::HasSubstr;

// Bytes, a few words, and an end.
std::shared_ptr<const Vocabulary> vocabulary() {
  static const auto kVocabulary = [] {
    Vocabulary v;
    for (int i = 0; i < 256; ++i) v.bytes.emplace_back(1, static_cast<char>(i));
    for (const char* word : {"true", "{\"", "\":", "</think>", "ab", "</think>\n\n"}) v.bytes.emplace_back(word);
    v.ends = {static_cast<TokenId>(v.bytes.size())};
    v.bytes.emplace_back();
    v.control = {static_cast<TokenId>(v.bytes.size())};
    v.bytes.emplace_back();
    return std::make_shared<const Vocabulary>(std::move(v));
  }();
  return kVocabulary;
}
TokenId end() {
  return vocabulary()->ends.front();
}
TokenId word(std::string_view text) {
  for (size_t i = 0; i < vocabulary()->bytes.size(); ++i)
    if (vocabulary()->bytes[i] == text) return static_cast<TokenId>(i);
  return -1;
}
int64_t words() {
  return mask_words(std::ssize(vocabulary()->bytes));
}
bool has(const std::vector<uint32_t>& mask, TokenId t) {
  return (mask[static_cast<size_t>(t) / 32] >> (t % 32) & 1) != 0;
}

class Grammars : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_grammars()) GTEST_SKIP() << "built without XGrammar";
  }
  static const GrammarCompiler& compiler() {
    static const auto kCompiler = make_grammar_compiler(*vocabulary());
    return *kCompiler;
  }
  static std::shared_ptr<const Grammar> compile(GrammarKind kind, std::string text, bool ends_itself = false) {
    auto grammar = compiler().compile({kind, std::move(text), ends_itself}, {}).value();
    grammar->prepare([] { return false; });
    return grammar;
  }
  static std::string refusal(GrammarKind kind, std::string text, CompileLimits limits = {}) {
    const auto done = compiler().compile({kind, std::move(text)}, limits);
    if (done.ok()) return "";
    EXPECT_EQ(done.error().fault, Fault::kRequest);
    return done.error().message;
  }
  static ConstrainedOutput output(Constraint c) {
    c.vocabulary = vocabulary();
    return {std::make_shared<const Constraint>(std::move(c)), words()};
  }
};

// Only what names a control token by its id takes it.
TEST_F(Grammars, ControlTokensAreNoText) {
  const TokenId control = vocabulary()->control.front();
  std::vector<uint32_t> mask(static_cast<size_t>(words()));
  for (const auto& [kind, text, begin] :
       {std::tuple{GrammarKind::kRegex, ".*", ""}, std::tuple{GrammarKind::kRegex, "[^a]+", "b"},
        std::tuple{GrammarKind::kEbnf, "root ::= [^a]*", ""},
        std::tuple{GrammarKind::kJsonSchema, R"({"type":"string"})", "\""},
        std::tuple{GrammarKind::kStructuralTag, R"({"type":"structural_tag","format":{"type":"any_text"}})", "x"}}) {
    const auto matcher = compile(kind, text)->begin();
    ASSERT_TRUE(*begin == 0 || matcher->accept_bytes(begin)) << text;
    ASSERT_TRUE(matcher->fill(mask)) << text;
    EXPECT_FALSE(has(mask, control)) << text;
    EXPECT_FALSE(matcher->accept(control)) << text;
  }
  const auto named =
      compile(GrammarKind::kStructuralTag, fmt::format(R"({{"type":"structural_tag","format":{{"type":"sequence",
      "elements":[{{"type":"token","token":{}}},{{"type":"const_string","value":"ab"}}]}}}})",
                                                       control))
          ->begin();
  ASSERT_TRUE(named->fill(mask));
  EXPECT_TRUE(has(mask, control));
  EXPECT_FALSE(has(mask, word("ab")));
  EXPECT_TRUE(named->accept(control));
  EXPECT_TRUE(named->accept(word("ab")));
  EXPECT_TRUE(named->completed());
}

TEST_F(Grammars, MasksSayWhatIsAccepted) {
  const auto matcher = compile(GrammarKind::kJsonSchema, R"({"type":"object","properties":{"a":{"type":"boolean"}},
      "required":["a"],"additionalProperties":false})")
                           ->begin();
  std::vector<uint32_t> mask(static_cast<size_t>(words()));
  for (const std::string_view text : {"{\"", "a", "\":", "true", "}"}) {
    const TokenId next = word(text);
    ASSERT_TRUE(matcher->fill(mask));
    EXPECT_FALSE(matcher->completed());
    for (TokenId t = 0; t < std::ssize(vocabulary()->bytes); ++t) {
      const bool accepted = matcher->accept(t);
      EXPECT_EQ(accepted, has(mask, t)) << "token " << t << " before " << text;
      if (accepted) matcher->rollback(1);
    }
    ASSERT_TRUE(matcher->accept(next)) << text;
  }
  EXPECT_TRUE(matcher->completed());
  ASSERT_TRUE(matcher->fill(mask));
  EXPECT_TRUE(has(mask, end()));
  EXPECT_FALSE(matcher->ended());
  ASSERT_TRUE(matcher->accept(end()));
  EXPECT_TRUE(matcher->ended());
  EXPECT_FALSE(matcher->accept(word("true")));
  EXPECT_FALSE(matcher->fill(mask));
}

TEST_F(Grammars, ForcedBytes) {
  const auto matcher = compile(GrammarKind::kRegex, "hello (world|moon)")->begin();
  EXPECT_EQ(matcher->forced(), "hello ");
  ASSERT_TRUE(matcher->accept_bytes("hello m"));
  EXPECT_EQ(matcher->forced(), "oon");
}

TEST_F(Grammars, WhatIsNoGrammarSaysSo) {
  EXPECT_THAT(refusal(GrammarKind::kRegex, "a("), HasSubstr("the regular expression cannot be used"));
  EXPECT_THAT(refusal(GrammarKind::kEbnf, "root ::= nothing"), HasSubstr("the grammar cannot be used"));
  EXPECT_THAT(refusal(GrammarKind::kStructuralTag, "[]"), HasSubstr("the structural tag cannot be used"));
  EXPECT_THAT(refusal(GrammarKind::kJsonSchema, "{\"type\": 5}"), HasSubstr("the JSON schema cannot be used"));
}

TEST_F(Grammars, WhatTakesTooMuchIsRefused) {
  std::string text = "root ::= \"x\"";
  for (int i = 0; i < 500; ++i) text += " | \"some text " + std::to_string(i * i) + "\"";
  EXPECT_THAT(refusal(GrammarKind::kEbnf, text, {.work = 1000}), HasSubstr("more memory and work than is allowed"));
  EXPECT_THAT(refusal(GrammarKind::kEbnf, text, {.time = std::chrono::milliseconds(0)}), HasSubstr("longer than 0 ms"));
  EXPECT_EQ(refusal(GrammarKind::kEbnf, text), "");
}

// At once, and not when an answer has begun.
TEST_F(Grammars, WhatNoTextCanBeginIsRefused) {
  EXPECT_THAT(refusal(GrammarKind::kJsonSchema, R"({"$ref": "#"})"), HasSubstr("no text satisfies it"));
  EXPECT_THAT(refusal(GrammarKind::kJsonSchema, R"({"anyOf": [{"allOf": [{"$ref": "#"}]}]})"),
              HasSubstr("no text satisfies it"));
  EXPECT_EQ(refusal(GrammarKind::kRegex, "a?"), "");
}

// What is refused and what is not, neither compiling nor a mask takes long.
TEST_F(Grammars, NothingExplodes) {
  std::vector<uint32_t> mask(static_cast<size_t>(words()));
  for (const char* regex :
       {"(a|b|c){1,3000}(d{1,3000}|e{1,3000}){1,300}", "(.*a){40}.{200}", "((a{1,99}){1,99}b){1,99}", "(x+x+)+y",
        "(a|a)*b", "((a*)*)*b", "(a?){200}a{200}", "[a-z]{100000}", "(.{0,50}(ab|cd|.{3})){20,60}"}) {
    const auto begin = std::chrono::steady_clock::now();
    const auto grammar = compiler().compile({GrammarKind::kRegex, regex}, {});
    if (grammar.ok()) {
      const auto matcher = (*grammar)->begin();
      for (int i = 0; i < 50; ++i) {
        matcher->fill(mask);
        if (!matcher->accept('a') && !matcher->accept('x')) break;
      }
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10)) << regex;
  }
}

// Automata of the library that were wrong before our patch.
TEST_F(Grammars, PatternsOfStrings) {
  struct Case {
    const char *pattern, *good, *bad;
  };
  for (const Case& c : {Case{"^[a-z]{2,4}(-x(-[a-z]{1,8})+)?$", "abcd-x-abc", "abcdabcd"},
                        {"^a(bc*)?$", "abcc", "ac"},
                        {"^a(b{1,3}c?)?d$", "abbbcd", "acd"},
                        {"^(a|ab+|cd)?e$", "abbe", "be"}}) {
    const std::string schema = fmt::format(R"({{"type":"string","pattern":"{}"}})", c.pattern);
    for (const bool good : {true, false}) {
      const auto matcher = compile(GrammarKind::kJsonSchema, schema)->begin();
      const std::string text = fmt::format("\"{}\"", good ? c.good : c.bad);
      EXPECT_EQ(matcher->accept_bytes(text) && matcher->completed(), good) << c.pattern << " " << text;
    }
  }
  // Characters that JSON wants escaped do not come as they are.
  const auto matcher = compile(GrammarKind::kJsonSchema, R"({"type":"string","maxLength":5})")->begin();
  ASSERT_TRUE(matcher->accept_bytes("\"a"));
  EXPECT_FALSE(matcher->accept('\t'));
  EXPECT_FALSE(matcher->accept(0x14));
  EXPECT_FALSE(matcher->accept('\\'));
}

// Two line breaks at most, and twenty blanks: a model that likes white space would write nothing else.
TEST_F(Grammars, WhiteSpaceHasAnEnd) {
  const std::string blanks(20, ' ');
  for (const auto& [kind, text, begin, end] :
       {std::tuple{GrammarKind::kJsonObject, "", "{", "\"a\":[1,2]}"},
        std::tuple{GrammarKind::kJsonSchema, R"({"type":"array","items":{"type":"integer"}})", "[1,", "2]"},
        std::tuple{GrammarKind::kJsonSchema, R"({"type":"object","properties":{"a":{"const":1}},"required":["a"]})",
                   "{\"a\":", "1}"}}) {
    const auto grammar = compile(kind, text);
    for (const auto& [space, good] : {std::pair{std::string(), true},
                                      {" ", true},
                                      {"\n\n" + blanks, true},
                                      {"\n" + std::string(20, '\t'), true},
                                      {blanks, true},
                                      {"\n\n\n", false},
                                      {blanks + " ", false},
                                      {"\n\n" + blanks + "\t", false}}) {
      const auto matcher = grammar->begin();
      EXPECT_EQ(matcher->accept_bytes(begin + space + end) && matcher->completed(), good)
          << text << " " << space.size() << " bytes of white space";
    }
  }
}

TEST_F(Grammars, ManyChoicesCompileFast) {
  std::vector<std::string> choices;
  for (int i = 0; i < 10000; ++i) choices.push_back("option number " + std::to_string(i) + (i % 3 == 0 ? "é" : ""));
  const auto begin = std::chrono::steady_clock::now();
  const auto grammar = compile(GrammarKind::kEbnf, "root ::= " + choice_expression(choices));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  for (const char* text : {"option number 1", "option number 9999é", "option number 10"}) {
    const auto matcher = grammar->begin();
    EXPECT_TRUE(matcher->accept_bytes(text) && matcher->completed()) << text;
  }
  for (const char* text : {"option number 10000", "option number ", "option number 9999"}) {
    const auto matcher = grammar->begin();
    EXPECT_FALSE(matcher->accept_bytes(text) && matcher->completed()) << text;
  }
}

TEST(Choices, AreWrittenOnce) {
  EXPECT_EQ(choice_pattern({"abc", "abd", "a", "x.y", "abc"}), "^((a(|b(c|d))|x\\.y))$");
  EXPECT_EQ(choice_expression({"one"}), "\"one\"");
  EXPECT_EQ(choice_expression({"a\"", "a\n"}), "\"a\" (\"\\u000a\" | \"\\\"\")");
}

TEST_F(Grammars, RecursionIsFollowedAndDeep) {
  const auto grammar = compile(GrammarKind::kJsonSchema, R"({"$ref":"#/$defs/node","$defs":{"node":{"type":"object",
      "properties":{"next":{"$ref":"#/$defs/node"}},"additionalProperties":false}}})");
  std::string text;
  for (int i = 0; i < 200; ++i) text += "{\"next\":";
  text += "{}" + std::string(200, '}');
  const auto matcher = grammar->begin();
  EXPECT_TRUE(matcher->accept_bytes(text));
  EXPECT_TRUE(matcher->completed());
}

TEST_F(Grammars, AnOutputIsFreeUntilItsGrammarBegins) {
  Constraint c;
  c.grammar = compile(GrammarKind::kRegex, "[0-9]{2}");
  c.not_before = "</think>";
  for (const bool straddles : {false, true}) {
    ConstrainedOutput o = output(c);
    EXPECT_TRUE(o.depends());
    for (const char b : std::string_view("x<ab>/")) EXPECT_TRUE(o.commit(b));
    EXPECT_FALSE(o.masked());
    const TokenId tag = word(straddles ? "</think>\n\n" : "</think>");
    EXPECT_EQ(o.cut(std::vector<TokenId>{'a', tag, '1'}), 1);
    EXPECT_TRUE(o.commit(tag));
    ASSERT_TRUE(o.masked());
    EXPECT_EQ(o.cut(std::vector<TokenId>{'1', 'x', '1'}), 1);
    EXPECT_TRUE(o.commit('1'));
    EXPECT_FALSE(o.complete());
    EXPECT_TRUE(o.commit('2'));
    EXPECT_TRUE(o.complete());
    EXPECT_FALSE(o.ended());
    EXPECT_TRUE(o.commit(end()));
    EXPECT_TRUE(o.ended());
  }
}

TEST_F(Grammars, AGrammarRepeatsBehindItsTrigger) {
  Constraint c;
  c.grammar = compile(GrammarKind::kRegex, "[0-9]{2}>", true);
  c.after = "<";
  c.repeats = true;
  ConstrainedOutput o = output(c);
  for (int round = 0; round < 3; ++round) {
    for (const char b : std::string_view("text <")) EXPECT_TRUE(o.commit(b));
    ASSERT_TRUE(o.masked());
    std::vector<uint32_t> masks(static_cast<size_t>(3 * words()));
    EXPECT_EQ(o.cut(std::vector<TokenId>{'1', '2', '>', 'a'}), 2);
    EXPECT_TRUE(o.fill(std::vector<TokenId>{'1', '2'}, masks));
    const auto row = [&](int i) {
      return std::vector<uint32_t>(masks.begin() + i * words(), masks.begin() + (i + 1) * words());
    };
    EXPECT_TRUE(has(row(0), '7'));
    EXPECT_FALSE(has(row(0), '>'));
    EXPECT_TRUE(has(row(2), '>'));
    EXPECT_FALSE(has(row(2), '7'));
    for (const char b : std::string_view("12>")) EXPECT_TRUE(o.commit(b));
    EXPECT_FALSE(o.masked());
    EXPECT_FALSE(o.ended());
  }
}

TEST_F(Grammars, BadWordsLookBackOverDrafts) {
  Constraint c;
  c.bad_words = {{'a'}, {'b', 'c', 'd'}};
  ConstrainedOutput o = output(c);
  std::vector<uint32_t> masks(static_cast<size_t>(3 * words()));
  EXPECT_TRUE(o.commit('b'));
  EXPECT_TRUE(o.fill(std::vector<TokenId>{'c', 'x'}, masks));
  const auto row = [&](int i) {
    return std::vector<uint32_t>(masks.begin() + i * words(), masks.begin() + (i + 1) * words());
  };
  EXPECT_FALSE(has(row(0), 'a'));
  EXPECT_TRUE(has(row(0), 'd'));
  EXPECT_FALSE(has(row(1), 'd'));
  EXPECT_TRUE(has(row(2), 'd'));
}

TEST_F(Grammars, ACacheCompilesOnceAndForgets) {
  GrammarCache cache(vocabulary(), {.threads = 2, .cache_bytes = 1 << 20});
  const GrammarSpec spec{GrammarKind::kRegex, "a{1,50}b"};
  std::vector<std::thread> threads;
  std::vector<std::shared_ptr<const Grammar>> got(8);
  for (size_t i = 0; i < got.size(); ++i) threads.emplace_back([&, i] { got[i] = cache.get(spec).value(); });
  for (std::thread& t : threads) t.join();
  for (const auto& g : got) EXPECT_EQ(g, got[0]);
  EXPECT_EQ(cache.stats().compiled, 1);
  EXPECT_EQ(cache.stats().hits, 7);
  EXPECT_FALSE(cache.get({GrammarKind::kRegex, "("}).ok());
  EXPECT_FALSE(cache.get({GrammarKind::kRegex, "("}).ok());
  EXPECT_EQ(cache.stats().refused, 1);
  for (int i = 0; i < 300; ++i) EXPECT_TRUE(cache.get({GrammarKind::kRegex, "[a-z]{1,40}x" + std::to_string(i)}).ok());
  EXPECT_LT(cache.stats().bytes, int64_t{4} << 20);
}

// The bound of the cache is one of memory: the heap grows by no more than what the cache says that it holds.
TEST_F(Grammars, ACacheKnowsWhatItHolds) {
  if (heap_use().used == 0) GTEST_SKIP() << "the allocator of this build (a sanitizer's) does not count what is used";
  GrammarCache cache(vocabulary(), {.threads = 1});
  const auto schema = [](int i) {
    return GrammarSpec{
        GrammarKind::kJsonSchema,
        fmt::format(R"({{"type":"object","properties":{{"name_{0}":{{"type":"string"}},"count_{0}":)"
                    R"({{"type":"integer"}},"list_{0}":{{"type":"array","items":{{"type":"number"}}}}}},)"
                    R"("required":["name_{0}","count_{0}","list_{0}"]}})",
                    i)};
  };
  const auto settled = [&] {  // masks are prepared behind the compilation
    int64_t before = -1;
    while (before != cache.stats().bytes) {
      before = cache.stats().bytes;
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
    }
    return before;
  };
  ASSERT_TRUE(cache.get(schema(0)).ok());
  const int64_t held = settled(), used = heap_use().used;
  for (int i = 1; i <= 40; ++i) ASSERT_TRUE(cache.get(schema(i)).ok());
  const int64_t said = settled() - held, grown = heap_use().used - used;
  EXPECT_GT(grown, int64_t{1} << 20);
  EXPECT_LE(grown, said);
}

}  // namespace
}  // namespace quire::test
