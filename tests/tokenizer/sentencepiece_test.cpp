// SentencePiece's BPE: vocabularies written out here, and random ones beside the algorithm as its paper has it. Beside
// the original programs: golden_sentencepiece_test.cpp and tools/check_tokenizers.py.
#include "tokenizer/sentencepiece.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <time.h>

#include <cmath>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <random>

#include "support/seeds.h"
#include "tokenizer/detokenizer.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"

namespace quire {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Ids = std::vector<TokenId>;

constexpr EncodeOptions kBare{.add_special = false, .parse_special = true};
constexpr EncodeOptions kUser{.add_special = false, .parse_special = false};

// <unk>, <s>, </s>, the 256 byte tokens, then what a test adds.
class PieceBuilder {
 public:
  static constexpr TokenId kUnk = 0, kBos = 1, kEos = 2, kBytes = 3, kFirst = 259;

  explicit PieceBuilder(std::string model = "llama") {
    config_.model = std::move(model);
    config_.unknown = kUnk, config_.bos = kBos, config_.eos = kEos;
    add("<unk>", 0, TokenType::kUnknown), add("<s>", 0, TokenType::kControl), add("</s>", 0, TokenType::kControl);
    for (int b = 0; b < 256; ++b) add(fmt::format("<0x{:02X}>", b), 0, TokenType::kByte);
  }
  PieceBuilder(const PieceBuilder&) = delete;

  TokenId add(std::string text, float score, TokenType type = TokenType::kNormal) {
    config_.tokens.push_back(texts_.emplace_back(std::move(text)));
    config_.token_types.push_back(static_cast<int32_t>(type));
    config_.scores.push_back(score);
    return static_cast<TokenId>(config_.tokens.size() - 1);
  }
  TokenId control(std::string text) { return add(std::move(text), 0, TokenType::kControl); }
  TokenId user_defined(std::string text) { return add(std::move(text), 0, TokenType::kUserDefined); }
  void merge(std::string text) { config_.merges.push_back(texts_.emplace_back(std::move(text))); }
  TokenizerConfig& config() { return config_; }
  Tokenizer build() const {
    auto t = Tokenizer::create(config_);
    QUIRE_CHECK(t.ok(), "{}", t.error().message);
    return std::move(t).value();
  }

 private:
  std::deque<std::string> texts_;
  TokenizerConfig config_;
};

constexpr TokenId byte_token(int byte) {
  return PieceBuilder::kBytes + byte;
}

TEST(SentencePiece, BestScoreMergesFirst) {
  PieceBuilder b;
  const TokenId space = b.add("▁", -20), a = b.add("a", -21), c = b.add("c", -22);
  const TokenId aa = b.add("aa", -2), ac = b.add("ac", -1), sa = b.add("▁a", -3);
  const Tokenizer t = b.build();
  EXPECT_THAT(t.encode("aac", kBare), ElementsAre(sa, ac));
  EXPECT_THAT(t.encode("aaa", kBare), ElementsAre(space, aa, a));  // the leftmost of equals
  EXPECT_THAT(t.encode("ca a", kBare), ElementsAre(space, c, a, sa));
  EXPECT_THAT(t.encode("é", kBare), ElementsAre(space, byte_token(0xC3), byte_token(0xA9)));
  EXPECT_THAT(t.encode("\xC3", kBare), ElementsAre(space, byte_token(0xEF), byte_token(0xBF), byte_token(0xBD)));
  EXPECT_THAT(t.encode("", kBare), ElementsAre());
  EXPECT_THAT(t.encode(""), ElementsAre(PieceBuilder::kBos));
}

TEST(SentencePiece, MergesCountBeforeScores) {
  PieceBuilder b;
  const TokenId a = b.add("a", -2), c = b.add("c", -3), ac = b.add("ac", -9), aa = b.add("aa", -1);
  b.config().space_prefix = SpacePrefix::kNever;
  b.merge("a c");
  b.merge("a a");
  const Tokenizer t = b.build();
  EXPECT_THAT(t.encode("aac", kBare), ElementsAre(a, ac));
  EXPECT_THAT(t.encode("aaca", kBare), ElementsAre(a, ac, a));
  EXPECT_THAT(t.encode("aa", kBare), ElementsAre(aa));
  EXPECT_THAT(t.encode("c", kBare), ElementsAre(c));
}

TEST(SentencePiece, SpaceInFront) {
  PieceBuilder b;
  const TokenId space = b.add("▁", -2), x = b.add("x", -3), user = b.user_defined("<u>"), control = b.control("<c>");
  using P = SpacePrefix;
  const struct {
    P prefix;
    const char* text;
    Ids ids;
  } cases[] = {
      {P::kNever, "x<c>x<u>x", {x, control, x, user, x}},
      {P::kPrepend, "x<c>x<u>x", {space, x, control, space, x, user, space, x}},
      {P::kPrepend, " x", {space, space, x}},
      {P::kMetaspaceAlways, "x<c>x<u>x", {space, x, control, space, x, user, space, x}},
      {P::kMetaspaceAlways, " x<c> x<c>▁x", {space, x, control, space, x, control, space, x}},
      {P::kMetaspaceFirst, "x<c>x<u>x", {space, x, control, x, user, x}},
      {P::kMetaspaceFirst, " x", {space, x}},
      {P::kMetaspaceFirst, "<c>x", {control, x}},
      {P::kAfterControl, "x<c>x<u>x", {space, x, control, space, x, user, x}},
  };
  for (const auto& c : cases) {
    b.config().space_prefix = c.prefix;
    const Tokenizer t = b.build();
    EXPECT_EQ(t.encode(c.text, kBare), c.ids) << name_of(c.prefix) << ": " << c.text;
    EncodeOptions continues = kBare;
    continues.continues = true;
    EXPECT_THAT(t.encode("x", continues), ElementsAre(x));
  }
}

TEST(SentencePiece, DecodingTakesTheSpaceAway) {
  PieceBuilder b;
  const TokenId space = b.add("▁", -2), hi = b.add("▁hi", -3), control = b.control("<c>"), user = b.user_defined("<u>");
  const TokenId spaces = b.user_defined("▁▁");
  const Tokenizer t = b.build();
  EXPECT_EQ(t.decode(Ids{1, hi, hi}), "hi hi");
  EXPECT_EQ(t.decode(Ids{1, hi, hi}, true), "<s> hi hi");
  EXPECT_EQ(t.decode(Ids{space, space, hi}), "  hi");
  EXPECT_EQ(t.decode(Ids{user, hi}), "<u> hi");
  EXPECT_EQ(t.decode(Ids{hi}, false, TextPart::kContinuation), " hi");
  EXPECT_EQ(t.token_bytes(spaces), "  ");
  EXPECT_EQ(t.token_text(spaces), "▁▁");

  StreamDetokenizer whole(t), rest(t, false, TextPart::kContinuation);
  const auto streamed = [](StreamDetokenizer& stream, const Ids& ids) {
    std::string text;
    for (const TokenId id : ids) text += stream.push(id);
    return text + stream.flush();
  };
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(streamed(whole, {1, hi, hi}), "hi hi");
    EXPECT_EQ(streamed(rest, {1, hi, hi}), " hi hi");
  }
  // What is generated loses a space where encoding would have put one.
  EXPECT_EQ(t.part_after(Ids{}), TextPart::kWhole);
  EXPECT_EQ(t.part_after(Ids{1}), TextPart::kWhole);
  EXPECT_EQ(t.part_after(Ids{1, hi, control}), TextPart::kWhole);
  EXPECT_EQ(t.part_after(Ids{1, hi}), TextPart::kContinuation);
}

TEST(SentencePiece, BrokenBytes) {
  PieceBuilder b;
  b.add("▁", -2);
  const Tokenizer t = b.build();
  // One U+FFFD for each byte, as SentencePiece has it.
  const Ids ids = {byte_token(0xE4), byte_token(0xBD), byte_token('x'),
                   byte_token(0xC3), byte_token(0xA9), byte_token(0xF0)};
  EXPECT_EQ(t.decode(ids), "\uFFFD\uFFFDxé\uFFFD");
  StreamDetokenizer stream(t);
  std::string text;
  for (const TokenId id : ids) text += stream.push(id);
  EXPECT_EQ(text + stream.flush(), "\uFFFD\uFFFDxé\uFFFD");
}

TEST(SentencePiece, UserDefinedTokensComeBeforeMerges) {
  PieceBuilder b;
  b.config().space_prefix = SpacePrefix::kNever;
  const TokenId space = b.add("▁", -2), x = b.add("x", -3), sx = b.add("▁x", -1);
  const TokenId two = b.user_defined("▁▁"), three = b.user_defined("▁▁▁");
  const Tokenizer t = b.build();
  EXPECT_THAT(t.encode("    x", kBare), ElementsAre(three, sx));
  EXPECT_THAT(t.encode("  x", kUser), ElementsAre(two, x));
  EXPECT_THAT(t.encode("▁▁x ", kUser), ElementsAre(two, x, space));
}

// As llama.cpp's converter writes Gemma's runs of spaces.
TEST(SentencePiece, UserDefinedSpacesAreMarksToo) {
  PieceBuilder b;
  b.config().space_prefix = SpacePrefix::kNever;
  const TokenId space = b.add("▁", -2), x = b.add("x", -3), two = b.user_defined("  "), three = b.user_defined("   ");
  const TokenId other = b.user_defined("x x");
  const Tokenizer t = b.build();
  EXPECT_THAT(t.encode("    x", kUser), ElementsAre(three, space, x));
  EXPECT_THAT(t.encode("▁▁x ", kUser), ElementsAre(two, x, space));
  EXPECT_THAT(t.encode("x x▁x▁▁▁", kUser), ElementsAre(other, space, x, three));
  EXPECT_EQ(t.decode(t.encode("   x  ", kUser)), "   x  ");
}

TEST(SentencePiece, ControlTokensOnlyFromTrustedText) {
  PieceBuilder b;
  const TokenId control = b.control("<c>");
  for (const char* piece : {"▁", "<", "c", ">", "<c", "c>"}) b.add(piece, -1);
  const Tokenizer t = b.build();
  EXPECT_THAT(t.encode("<c>", kBare), ElementsAre(control));
  for (const TokenId id : t.encode("<c> </s> <0x41>", kUser)) EXPECT_GE(id, PieceBuilder::kBytes);
  EXPECT_EQ(t.decode(t.encode("<c> </s> <0x41>", kUser)), "<c> </s> <0x41>");
}

TEST(SentencePiece, WhiteSpaceBesideSpecialTokens) {
  PieceBuilder b;
  b.config().space_prefix = SpacePrefix::kNever;
  const TokenId x = b.add("x", -1), left = b.control("<left>"), right = b.control("<right>");
  b.config().strip_before = {left};
  b.config().strip_behind = {right};
  const Tokenizer t = b.build();
  EXPECT_THAT(t.encode("x \n\u2003<left>x", kBare), ElementsAre(x, left, x));
  EXPECT_THAT(t.encode("<right>\t \u3000x", kBare), ElementsAre(right, x));
  EXPECT_THAT(t.encode("<right> \n <left>", kBare), ElementsAre(right, left));
  b.config().strip_before.clear();
  b.config().strip_behind.clear();
  b.config().controls_strip_behind = true;
  EXPECT_THAT(b.build().encode("<right>\nx<left>\nx", kBare), ElementsAre(right, x, left, x));
  EXPECT_EQ(b.build().encode("<s>\nx", kBare).size(), 3u);
}

TEST(SentencePiece, ExtraSpacesGo) {
  PieceBuilder b;
  b.config().remove_extra_spaces = true;
  const TokenId space = b.add("▁", -2), x = b.add("x", -3);
  const Tokenizer t = b.build();
  EXPECT_THAT(t.encode("  x   x ", kBare), ElementsAre(space, x, space, x));
  EXPECT_THAT(t.encode("   ", kBare), ElementsAre());
  EXPECT_THAT(t.encode("▁x▁ ▁", kBare), ElementsAre(space, space, x));
  EXPECT_EQ(t.decode(Ids{space, space, x, space, space, x}), "x  x");
  StreamDetokenizer stream(t);
  std::string text;
  for (const TokenId id : {space, space, x, space}) text += stream.push(id);
  EXPECT_EQ(text + stream.flush(), "x ");
}

TEST(SentencePiece, UnknownTokenWithoutBytes) {
  TokenizerConfig c;
  c.model = "llama";
  c.tokens = {"<unk>", "<s>", "</s>", "▁", "x"};
  c.token_types = {2, 3, 3, 1, 1};
  c.scores = {0, 0, 0, -1, -2};
  const auto t = Tokenizer::create(c);
  ASSERT_TRUE(t.ok()) << t.error().message;
  EXPECT_THAT(t->encode("xyzx<unk>y", kBare), ElementsAre(3, 4, 0, 4, 0, 3, 0));
  c.token_types[0] = 3;
  c.unknown = -1;
  EXPECT_THAT(Tokenizer::create(c).error().message, HasSubstr("neither a byte token <0x00>"));
}

// Beside the library `tokenizers` with byte_fallback and fuse_unk: a character of which a byte is no token is unknown
// as a whole, and a run of such characters is one token.
TEST(SentencePiece, UnknownTokenWhereAByteIsMissing) {
  PieceBuilder b;
  b.config().space_prefix = SpacePrefix::kNever;
  const TokenId x = b.add("x", -1), e = b.add("é", -2), unk = PieceBuilder::kUnk;
  b.config().token_types[byte_token(0x80)] = static_cast<int32_t>(TokenType::kUnused);
  const Tokenizer t = b.build();
  EXPECT_THAT(t.encode("xÀx", kBare), ElementsAre(x, unk, x));
  EXPECT_THAT(t.encode("ĀĀ", kBare), ElementsAre(unk));
  EXPECT_THAT(t.encode("xĀé", kBare), ElementsAre(x, unk, e));
  EXPECT_THAT(t.encode("ÀĀ", kBare), ElementsAre(unk));
  EXPECT_THAT(t.encode("x€Ā", kBare), ElementsAre(x, byte_token(0xE2), byte_token(0x82), byte_token(0xAC), unk));
}

TEST(SentencePiece, RunsOfNewlinesInGemma4) {
  PieceBuilder b("gemma4");
  const TokenId one = b.add("\n", -1), three = b.add("\n\n\n", -1), x = b.add("x", -1), ab = b.add("ab", -1);
  b.add("a", -1), b.add("b", -1);
  b.merge("a b");
  const Tokenizer t = b.build();
  EXPECT_THAT(t.encode("x\n\n\nab\n\nx"), ElementsAre(PieceBuilder::kBos, x, three, ab, one, one, x));
  EXPECT_THAT(t.encode("\n\n\n\n", kBare), ElementsAre(one, one, one, one));
}

// The algorithm without any table: of all neighbours, those whose joined text has the best score become one.
Ids by_definition(const TokenizerConfig& c, std::string text) {
  std::map<std::string, TokenId> ids;
  for (size_t i = 0; i < c.tokens.size(); ++i)
    if (c.token_types[i] == 1) ids[std::string(c.tokens[i])] = static_cast<TokenId>(i);
  std::vector<std::string> parts;
  while (!text.empty()) {
    const size_t n = unicode::decode(text).length;
    parts.push_back(text.substr(0, n) == " " ? "▁" : text.substr(0, n));
    text.erase(0, n);
  }
  for (;;) {
    size_t best = parts.size();
    float score = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto at = ids.find(parts[i] + parts[i + 1]);
      if (at == ids.end()) continue;
      const float s = c.scores[static_cast<size_t>(at->second)];
      if (best == parts.size() || s > score) best = i, score = s;
    }
    if (best == parts.size()) break;
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
  Ids out;
  for (const std::string& p : parts) {
    if (ids.contains(p)) {
      out.push_back(ids[p]);
    } else {
      for (const char byte : p) out.push_back(byte_token(static_cast<uint8_t>(byte)));
    }
  }
  return out;
}

void compare_random_vocabularies(int seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  const std::vector<std::string> letters = {"a", "b", "c", "é", "語", "😀", "▁", "\n"};
  const auto draw = [&](size_t below) { return std::uniform_int_distribution<size_t>(0, below - 1)(random); };
  for (int round = 0; round < 60; ++round) {
    PieceBuilder b;
    b.config().space_prefix = SpacePrefix::kNever;
    std::vector<std::string> known;
    for (const std::string& l : letters)
      if (l == "▁" || draw(6) != 0) known.push_back(l);  // without it, its bytes would come back as what they are
    for (size_t n = 5 + draw(60); n > 0; --n) {
      // Joined from what is there, mostly, so that merges reach it; a part that is no token now and then.
      std::string piece;
      for (size_t k = 1 + draw(3); k > 0; --k) piece += draw(8) == 0 ? letters[draw(8)] : known[draw(known.size())];
      if (piece.size() < 40) known.push_back(piece);
    }
    std::map<std::string, float> scores;
    for (const std::string& k : known) scores[k] = -static_cast<float>(draw(12));  // many are equal
    for (const auto& [text, score] : scores) b.add(text, score);
    const Tokenizer t = b.build();
    for (int i = 0; i < 40; ++i) {
      std::string text;
      for (size_t n = draw(i == 0 ? 3000 : 90); n > 0; --n) text += letters[draw(8)];
      if (i != 0) {
        ASSERT_EQ(t.encode(text, kBare), by_definition(b.config(), text)) << text;
      }
      ASSERT_EQ(t.decode(t.encode(text, kBare)), with_spaces(text));
    }
  }
}

TEST(SentencePiece, RandomVocabulariesAsByDefinition) {
  const test::Seeds seeds = test::seeds_or(1);
  for (int seed = seeds.first; seed <= seeds.last; ++seed) compare_random_vocabularies(seed);
}

TEST(SentencePiece, HostileConfigs) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  const struct {
    const char* name;
    std::function<void(PieceBuilder&)> spoil;
    const char* message;
  } cases[] = {
      {"few scores", [](auto& b) { b.config().scores.pop_back(); }, "scores has 259 entries for 260 tokens"},
      {"many scores", [](auto& b) { b.config().scores.push_back(0); }, "scores has 261 entries for 260 tokens"},
      {"NaN", [&](auto& b) { b.config().scores[7] = nan; }, "scores[7] is nan"},
      {"infinite", [&](auto& b) { b.config().scores[7] = -inf; }, "scores[7] is -inf"},
      {"missing byte",
       [](auto& b) {
         b.config().token_types[byte_token(0x80)] = 1;
         b.config().token_types[0] = 3;
         b.config().unknown = -1;
       },
       "neither a byte token <0x80> nor an unknown one"},
      {"no bytes", [](auto& b) { std::fill_n(b.config().token_types.begin(), 260, 1), b.config().unknown = -1; },
       "neither a byte token <0x00> nor an unknown one"},
      {"long token", [](auto& b) { b.add(std::string(513, 'a'), 0); }, "tokens[260] has 513 bytes"},
      {"merge", [](auto& b) { b.merge("xx"); }, "merges[0] is 'xx'; a merge is two texts"},
      {"unknown part", [](auto& b) { b.merge("x y"); }, "but 'y' is no token"},
      {"unknown result", [](auto& b) { b.merge("x x"); }, "but 'xx' is no token"},
      {"strip", [](auto& b) { b.config().strip_behind = {-1}; }, "strip_behind has the id -1"},
      {"bos", [](auto& b) { b.config().bos = 999; }, "bos_token_id is 999"},
  };
  for (const auto& c : cases) {
    PieceBuilder b;
    b.add("x", -1);
    c.spoil(b);
    const auto t = Tokenizer::create(b.config());
    ASSERT_FALSE(t.ok()) << c.name;
    EXPECT_EQ(t.error().fault, Fault::kModelFile) << c.name;
    EXPECT_THAT(t.error().message, HasSubstr(c.message)) << c.name;
  }
}

// A vocabulary in which every text of two letters is a token: the ways to merge grow with each one.
TEST(SentencePiece, TooManyWaysToMergeAreRefused) {
  PieceBuilder b;
  std::vector<std::string> texts = {""};
  for (size_t begin = 0, length = 1; length <= 18; ++length) {
    for (const size_t end = texts.size(); begin < end; ++begin)
      for (const char c : {'a', 'b'}) texts.push_back(texts[begin] + c);
  }
  for (size_t i = 1; i < texts.size(); ++i) b.add(texts[i], -1);
  const auto t = Tokenizer::create(b.config());
  ASSERT_FALSE(t.ok());
  EXPECT_THAT(t.error().message, HasSubstr("more than 4194304 ways to merge"));
}

double cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// One word without a place to cut, eight times as long: n log n takes little more than eight times as long, n² 64
// times.
TEST(SentencePiece, LongWordsTakeNoSquareTime) {
  PieceBuilder b;
  b.config().space_prefix = SpacePrefix::kNever;
  std::string run = "a";
  for (int i = 0; i < 6; ++i, run += run) b.add(run, -static_cast<float>(i));
  const Tokenizer t = b.build();
  const auto seconds = [&](size_t n) {
    const std::string text(n, 'a');
    double best = 1e9;
    for (int i = 0; i < 3; ++i) {
      const double begin = cpu_seconds();
      EXPECT_EQ(t.encode(text, kBare).size(), n / 32);
      best = std::min(best, cpu_seconds() - begin);
    }
    return best;
  };
  const double small = seconds(size_t{1} << 17);
  EXPECT_LT(seconds(size_t{1} << 20), 25 * small + 0.05);
}

}  // namespace
}  // namespace quire
