// A mask has exactly the tokens that the matcher takes: each token of a vocabulary is tried, wherever random texts of
// many grammars come to. The masks are computed ahead and by what follows a rule, the matcher reads byte by byte.
#include <gtest/gtest.h>

#include <random>

#include "constraint/grammar.h"
#include "core/heap.h"
#include "support/sanitizers.h"

namespace quire::test {
namespace {

struct Form {
  GrammarKind kind;
  const char* text;
};

constexpr Form kForms[] = {
    {GrammarKind::kJsonSchema, R"({"type":"string","maxLength":5})"},
    {GrammarKind::kJsonSchema,
     R"({"type":"array","items":{"type":"string","minLength":2,"maxLength":9},"minItems":2})"},
    {GrammarKind::kJsonSchema, R"({"type":"array","items":{"type":"string"},"maxItems":3})"},
    {GrammarKind::kJsonSchema, R"({"type":"object","properties":{"a":{"type":"string","maxLength":3},
        "b":{"type":"array","items":{"type":"integer"},"minItems":1,"maxItems":4},"c":{"enum":["x","xy","z\""]}},
        "required":["a"],"additionalProperties":{"type":"string","maxLength":4}})"},
    {GrammarKind::kJsonSchema, R"({"anyOf":[{"type":"string","maxLength":2},{"type":"array","items":{"anyOf":[
        {"type":"string","maxLength":4},{"type":"null"}]}}]})"},
    {GrammarKind::kJsonSchema, R"({"type":"object","properties":{"k":{"$ref":"#/$defs/n"}},"required":["k"],
        "additionalProperties":false,"$defs":{"n":{"anyOf":[{"type":"string","maxLength":6},
        {"type":"array","items":{"$ref":"#/$defs/n"},"maxItems":2}]}}})"},
    {GrammarKind::kJsonSchema, R"({"type":"string","pattern":"^[ab]{1,6}(c|, ){0,3}$"})"},
    {GrammarKind::kRegex, "([a-c]{1,4},){2,5}[x-z]{0,7}"},
    {GrammarKind::kRegex, "(a|ab){0,6}c?"},
    {GrammarKind::kEbnf,
     "root ::= pair{1,4} end\npair ::= word{0,3} \",\"\nword ::= [a-c]{1,5} \" \"?\nend ::= \"}\"?"},
    {GrammarKind::kEbnf,
     "root ::= item more\nmore ::= \"\" | \",\" item more\nitem ::= \"a\" tail\n"
     "tail ::= \"\" | \"b\" last\nlast ::= \"\" | \"c\" other\nother ::= [xyz]{0,3}"},
    {GrammarKind::kEbnf,
     "root ::= \"(\" shared \")\" | \"[\" shared \"]\"\nshared ::= [a-c] deep\ndeep ::= \"\" | \",\" deeper\n"
     "deeper ::= \"\" | [x-z] deep"},
    {GrammarKind::kEbnf,
     "root ::= one \")\" two \"]\"\none ::= \"a\" both\ntwo ::= \"b\" both\nboth ::= \"\" | [xyz] | \"c\" both"},
    {GrammarKind::kEbnf, "root ::= word{2,140} \":\"\nword ::= [a-c] tail\ntail ::= \"\" | [xyz]"},
    {GrammarKind::kEbnf,
     "root ::= (\"(\" word \")\"){1,3} word{130,200}\nword ::= [a-c] tail\ntail ::= \"\" | [xyz] \",\"?"},
};

Vocabulary random_vocabulary(std::mt19937& random) {
  constexpr std::string_view kLetters = "abcxyz01 ,,\"\"[]{}:()\\n";
  Vocabulary v;
  for (int i = 0; i < 256; ++i) v.bytes.emplace_back(1, static_cast<char>(i));
  while (v.bytes.size() < 1200) {
    std::string token;
    for (size_t n = 2 + random() % 7; n > 0; --n) token += kLetters[random() % kLetters.size()];
    if (random() % 8 == 0) token += "\xc3\xa4";
    v.bytes.push_back(std::move(token));
  }
  v.ends = {static_cast<TokenId>(v.bytes.size())};
  v.bytes.emplace_back();
  return v;
}

TEST(Masks, HaveWhatTheMatcherTakes) {
  if (!has_grammars()) GTEST_SKIP() << "built without XGrammar";
  std::mt19937 random(7);
  const Vocabulary vocabulary = random_vocabulary(random);
  const auto compiler = make_grammar_compiler(vocabulary);
  std::vector<uint32_t> mask(static_cast<size_t>(mask_words(std::ssize(vocabulary.bytes))));
  int64_t allowed = 0, refused = 0;
  for (const Form& form : kForms) {
    SCOPED_TRACE(form.text);
    const auto grammar = compiler->compile({form.kind, form.text}, {});
    ASSERT_TRUE(grammar.ok()) << grammar.error().message;
    for (int walk = 0; walk < 20; ++walk) {
      const auto matcher = (*grammar)->begin();
      std::string text;
      for (int step = 0; step < 25 && !matcher->ended(); ++step) {
        matcher->fill(mask);
        std::vector<TokenId> next;
        for (TokenId t = 0; t < std::ssize(vocabulary.bytes); ++t) {
          const bool takes = matcher->accept(t);
          if (takes) matcher->rollback(1);
          const bool has = (mask[static_cast<size_t>(t) / 32] >> (t % 32) & 1) != 0;
          ASSERT_EQ(has, takes) << "'" << vocabulary.bytes[static_cast<size_t>(t)] << "' behind '" << text << "'";
          (takes ? allowed : refused) += 1;
          if (takes && t != vocabulary.ends.front()) next.push_back(t);
        }
        if (next.empty()) break;
        const TokenId chosen = next[random() % next.size()];
        ASSERT_TRUE(matcher->accept(chosen));
        text += vocabulary.bytes[static_cast<size_t>(chosen)];
      }
    }
  }
  EXPECT_GT(allowed, 10000);
  EXPECT_GT(refused, 100000);
}

// What takes long is known before it is asked for, and can be done in parts.
TEST(Masks, OfStatesThatNobodyCameToAreNotQuick) {
  if (!has_grammars()) GTEST_SKIP() << "built without XGrammar";
  std::mt19937 random(7);
  const Vocabulary vocabulary = random_vocabulary(random);
  const auto compiler = make_grammar_compiler(vocabulary);
  std::vector<uint32_t> mask(static_cast<size_t>(mask_words(std::ssize(vocabulary.bytes))));
  int waits = 0;
  for (const Form& form : kForms) {
    SCOPED_TRACE(form.text);
    const auto grammar = compiler->compile({form.kind, form.text}, {}).value();
    EXPECT_FALSE(grammar->prepared());
    const auto matcher = grammar->begin();
    EXPECT_TRUE(matcher->quick());  // compiling found out what a text begins with
    for (int step = 0; step < 25 && !matcher->ended(); ++step) {
      const bool quick = matcher->quick();
      int parts = 0;
      while (matcher->prepare_next()) ++parts;
      EXPECT_EQ(quick, parts == 0);
      EXPECT_TRUE(matcher->quick());
      waits += !quick;
      matcher->fill(mask);
      TokenId next = static_cast<TokenId>(random() % vocabulary.bytes.size());
      while (!matcher->accept(next)) next = static_cast<TokenId>((next + 1) % std::ssize(vocabulary.bytes));
    }
    grammar->prepare([] { return false; });
    EXPECT_TRUE(grammar->prepared());
  }
  EXPECT_GT(waits, 50);
}

// Walks a text at random, so that the masks of its states are computed.
void walk(const Grammar& grammar, const Vocabulary& vocabulary, std::mt19937& random) {
  std::vector<uint32_t> mask(static_cast<size_t>(mask_words(std::ssize(vocabulary.bytes))));
  const auto matcher = grammar.begin();
  for (int step = 0; step < 25 && !matcher->ended(); ++step) {
    matcher->fill(mask);
    TokenId next = static_cast<TokenId>(random() % vocabulary.bytes.size());
    while (!matcher->accept(next)) next = static_cast<TokenId>((next + 1) % std::ssize(vocabulary.bytes));
  }
}

TEST(Masks, ThatTextsComeToNeedAreCounted) {
  if (!has_grammars()) GTEST_SKIP() << "built without XGrammar";
  std::mt19937 random(7);
  const Vocabulary vocabulary = random_vocabulary(random);
  const auto grammar = make_grammar_compiler(vocabulary)->compile({kForms[3].kind, kForms[3].text}, {}).value();
  const int64_t before = grammar->bytes();
  for (int i = 0; i < 20; ++i) walk(*grammar, vocabulary, random);
  EXPECT_GT(grammar->bytes(), before + 1000);
}

// Members that no other schema has make rules that no other has: the masks that are kept for others stay within their
// bound, and what they say of themselves is what the heap grew by.
TEST(Masks, KeptForOtherGrammarsAreBoundedAndCounted) {
  if (!has_grammars()) GTEST_SKIP() << "built without XGrammar";
  if (kAddressSanitizer) GTEST_SKIP() << "a sanitizer's heap says nothing of the program's";
  constexpr int64_t kMost = int64_t{4} << 20;
  std::mt19937 random(7);
  const Vocabulary vocabulary = random_vocabulary(random);
  const auto compiler = make_grammar_compiler(vocabulary, kMost);
  int64_t most = 0;
  const auto compile_some = [&](int first, int last) {
    for (int i = first; i < last; ++i) {
      const std::string schema = fmt::format(
          R"({{"type":"object","properties":{{"m{0}":{{"type":"string","maxLength":{1}}},"{0}x":{{"enum":["a{0}",
          "b{0}"]}}}},"required":["m{0}","{0}x"],"additionalProperties":false}})",
          i, 2 + i % 9);
      walk(*compiler->compile({GrammarKind::kJsonSchema, schema}, {}).value(), vocabulary, random);
      most = std::max(most, compiler->shared_bytes());
    }
  };
  compile_some(0, 20);
  const int64_t shared = compiler->shared_bytes(), heap = heap_use().used;
  compile_some(20, 1500);
  EXPECT_GT(most, kMost / 2);
  EXPECT_LE(most, kMost);
  const int64_t grown = heap_use().used - heap, counted = compiler->shared_bytes() - shared;
  EXPECT_LT(grown, counted + counted / 2 + (int64_t{1} << 20)) << "of which " << counted << " are counted";
}

}  // namespace
}  // namespace quire::test
