#include "tokenizer/bpe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>

#include "vocab_builder.h"

namespace quire {
namespace {

using test::VocabBuilder;
using ::testing::HasSubstr;
using Ids = std::vector<TokenId>;

Ids bpe(const VocabBuilder& builder, std::string_view word) {
  auto& config = const_cast<VocabBuilder&>(builder).config();
  auto vocab = Vocab::create(config.tokens, config.token_types);
  QUIRE_CHECK(vocab.ok(), "{}", vocab.error().message);
  auto model = Bpe::create(*vocab, config.merges);
  QUIRE_CHECK(model.ok(), "{}", model.error().message);
  Bpe::Scratch scratch;
  Ids out;
  model->encode(word, scratch, out);
  return out;
}

TEST(Bpe, LowestRankFirstThenLeftmost) {
  VocabBuilder b;
  const TokenId aa = b.merge("a", "a");
  const TokenId ab = b.merge("a", "b");
  const TokenId aab = b.merge("aa", "b");
  EXPECT_EQ(bpe(b, "aaa"), (Ids{aa, 'a'}));
  EXPECT_EQ(bpe(b, "aaaa"), (Ids{aa, aa}));
  EXPECT_EQ(bpe(b, "aab"), (Ids{aab}));
  EXPECT_EQ(bpe(b, "aaab"), (Ids{aa, ab}));
  EXPECT_EQ(bpe(b, "bab"), (Ids{'b', ab}));
}

TEST(Bpe, ARuleWhoseResultIsNoTokenFallsBackToBytes) {
  VocabBuilder b;
  b.rule("a", "b").rule("ab", "c");
  const TokenId abcd = b.merge("abc", "d");
  EXPECT_EQ(bpe(b, "ab"), (Ids{'a', 'b'}));
  EXPECT_EQ(bpe(b, "abc"), (Ids{'a', 'b', 'c'}));
  EXPECT_EQ(bpe(b, "abcd"), (Ids{abcd}));  // through two symbols that are no tokens
  EXPECT_EQ(bpe(b, "xabcy"), (Ids{'x', 'a', 'b', 'c', 'y'}));
}

TEST(Bpe, EqualTextsAreOneSymbol) {
  VocabBuilder b;
  const TokenId abc = b.merge("a", "bc");
  b.rule("b", "c").rule("ab", "c").rule("a", "b");
  EXPECT_EQ(bpe(b, "abc"), (Ids{abc}));  // rank 1 makes "bc", rank 0 then "abc"
}

TEST(Bpe, TheFirstOfRepeatedRulesCounts) {
  VocabBuilder b;
  const TokenId ab = b.merge("a", "b");
  const TokenId bc = b.merge("b", "c");
  b.rule("a", "b");
  EXPECT_EQ(bpe(b, "abc"), (Ids{ab, 'c'}));
  EXPECT_EQ(bpe(b, "xbc"), (Ids{'x', bc}));
}

TEST(Bpe, ControlTokensAreNeverProduced) {
  VocabBuilder b;
  b.control("</s>");
  const TokenId think = b.user_defined("<t>");
  b.rule("<", "/").rule("</", "s").rule("</s", ">").rule("<", "t").rule("<t", ">");
  EXPECT_EQ(bpe(b, "</s>"), (Ids{'<', '/', 's', '>'}));
  EXPECT_EQ(bpe(b, "<t>"), (Ids{think}));
}

// Merging as the definition says, on texts: every step looks at all pairs.
Ids naive(const TokenizerConfig& config, std::string_view word) {
  const auto& alphabet = ByteAlphabet::get();
  std::map<std::string, TokenId> ids;
  for (std::size_t i = 0; i < config.tokens.size(); ++i) ids[std::string(config.tokens[i])] = static_cast<TokenId>(i);
  std::map<std::pair<std::string, std::string>, std::size_t> ranks;
  for (std::size_t i = 0; i < config.merges.size(); ++i) {
    const std::string m(config.merges[i]);
    ranks.try_emplace({m.substr(0, m.find(' ')), m.substr(m.find(' ') + 1)}, i);
  }
  std::vector<std::string> symbols;
  for (const char b : word) symbols.emplace_back(alphabet.letter(static_cast<uint8_t>(b)));
  while (true) {
    std::size_t best = config.merges.size(), at = 0;
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto it = ranks.find({symbols[i], symbols[i + 1]});
      if (it != ranks.end() && it->second < best) best = it->second, at = i;
    }
    if (best == config.merges.size()) break;
    symbols[at] += symbols[at + 1];
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
  Ids out;
  for (const std::string& s : symbols) {
    if (const auto it = ids.find(s); it != ids.end()) {
      out.push_back(it->second);
    } else {
      const std::string bytes = alphabet.decode(s).value();
      for (const char b : bytes) out.push_back(static_cast<uint8_t>(b));
    }
  }
  return out;
}

// Random merge lists, well-formed or not (rules before the rules they need, results that are no tokens), on
// words on both sides of the length at which the search for the best pair changes.
TEST(Bpe, SameAsTheDefinition) {
  constexpr uint32_t kSeed = 5;
  std::mt19937 random(kSeed);
  for (int round = 0; round < 300; ++round) {
    VocabBuilder b;
    std::vector<std::string> parts = {"a", "b", "c", " ", "\xC3"};
    const bool well_formed = random() % 2 != 0;
    for (std::size_t k = random() % 40; k > 0; --k) {
      const std::string left = parts[random() % parts.size()], right = parts[random() % parts.size()];
      const std::string both = left + right;
      const bool known = std::find(parts.begin(), parts.end(), both) != parts.end();
      if (known || (!well_formed && random() % 3 == 0)) {
        b.rule(left, right);
      } else {
        b.merge(left, right);
      }
      if (!known && both.size() < 12) parts.push_back(both);
      if (!known && both.size() >= 12) break;
    }
    if (!well_formed) std::shuffle(b.config().merges.begin(), b.config().merges.end(), random);
    for (int w = 0; w < 20; ++w) {
      std::string word(1 + random() % (w % 4 == 0 ? 300 : 60), ' ');
      for (char& c : word) c = "aaabbc \xC3"[random() % 8];
      ASSERT_EQ(bpe(b, word), naive(b.config(), word)) << "round " << round << " seed " << kSeed << " " << word;
    }
  }
}

// Beside the library `tokenizers`: what is no token is gone before anything merges, or unknown.
TEST(Bpe, BytesThatAreNoTokens) {
  VocabBuilder b("gpt-2");
  const TokenId ab = b.merge("a", "b"), abc = b.merge("ab", "c"), unknown = b.control("<unk>");
  b.config().token_types['q'] = b.config().token_types[0xC3] = static_cast<int32_t>(TokenType::kUnused);
  const Tokenizer dropping = b.build();
  const std::pair<const char*, Ids> dropped[] = {{"aqb", {ab}},  {"abqc", {abc}},    {"q", {}},
                                                 {"qqab", {ab}}, {"\u00e9", {0xA9}}, {"abc", {abc}},
                                                 {"qa", {'a'}},  {"", {}},           {"a q b", {'a', ' ', ' ', 'b'}}};
  for (const auto& [text, ids] : dropped) EXPECT_EQ(dropping.encode(text), ids) << text;
  EXPECT_EQ(dropping.encode(std::string(5000, 'q')), Ids{}) << "where words are remembered";
  b.config().unknown_byte = unknown;
  const Tokenizer naming = b.build();
  const std::pair<const char*, Ids> named[] = {
      {"aqb", {'a', unknown, 'b'}},     {"abqc", {ab, unknown, 'c'}}, {"q", {unknown}},
      {"qqab", {unknown, unknown, ab}}, {"\u00e9", {unknown, 0xA9}},  {"abc", {abc}}};
  for (const auto& [text, ids] : named) EXPECT_EQ(naming.encode(text), ids) << text;
}

TEST(Bpe, BadMergesAreRefused) {
  struct Case {
    const char* merge;
    const char* message;
  };
  const Case cases[] = {
      {"", "a merge is two texts"},   {"ab", "a merge is two texts"}, {"a ", "a merge is two texts"},
      {" a", "a merge is two texts"}, {"a b c", "byte alphabet"},     {"中 b", "byte alphabet"},
      {"a \xC4", "byte alphabet"},    {"a \n", "byte alphabet"},
  };
  for (const Case& c : cases) {
    VocabBuilder b;
    b.merge("a", "a");
    b.config().merges.push_back(c.merge);
    const auto t = Tokenizer::create(b.config());
    ASSERT_FALSE(t.ok()) << c.merge;
    EXPECT_EQ(t.error().fault, Fault::kModelFile);
    EXPECT_THAT(t.error().message, HasSubstr("merges[1]")) << c.merge;
    EXPECT_THAT(t.error().message, HasSubstr(c.message)) << c.merge;
  }
}

}  // namespace
}  // namespace quire
