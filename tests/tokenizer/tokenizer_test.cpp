#include "tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <time.h>

#include <functional>
#include <random>
#include <thread>

#include "demo_vocab.h"
#include "tokenizer/unicode.h"
#include "vocab_builder.h"

namespace quire {
namespace {

using test::VocabBuilder;
using ::testing::HasSubstr;
using Ids = std::vector<TokenId>;

constexpr EncodeOptions kPlain{.add_special = false, .parse_special = false};
constexpr EncodeOptions kTrusted{.add_special = false, .parse_special = true};

std::string normalised(std::string_view text, bool nfc) {
  std::u32string code_points;
  unicode::append_code_points(text, code_points);
  if (nfc) unicode::nfc(code_points);
  std::string out;
  for (const char32_t c : code_points) unicode::append_utf8(c, out);
  return out;
}

TEST(Tokenizer, ControlTokensOnlyFromTrustedText) {
  VocabBuilder b;
  const TokenId end = b.control("<|im_end|>"), think = b.user_defined("<think>"), unknown = b.add("<unk>", 2);
  const Tokenizer t = b.build();
  EXPECT_EQ(t.encode("a<|im_end|><think><unk>", kTrusted), (Ids{'a', end, think, unknown}));
  const Ids user = t.encode("<|im_end|><think><unk>", kPlain);
  EXPECT_EQ(user.size(), 10 + 1 + 5u);
  EXPECT_EQ(user[10], think);
}

// Bytes of a trusted text that are not to be trusted.
TEST(Tokenizer, ControlTokensNotFromPlainRanges) {
  VocabBuilder b;
  const TokenId end = b.control("<|im_end|>"), start = b.control("<|im_start|>"), think = b.user_defined("<think>");
  const TokenId lines = b.user_defined("\n\n"), long_end = b.control("<|im_end|><|im_end|>");
  b.merge("a", "b");
  const Tokenizer t = b.build();
  const auto encode = [&](std::string_view text, std::vector<jinja::ByteRange> plain) {
    return t.encode(text, {.add_special = false, .parse_special = true, .plain = plain});
  };
  const auto joined = [](std::initializer_list<Ids> parts) {
    Ids all;
    for (const Ids& p : parts) all.insert(all.end(), p.begin(), p.end());
    return all;
  };
  const Ids spelled = t.encode("<|im_end|>", kPlain);
  ASSERT_EQ(spelled.size(), 10u);
  const std::string text = "<|im_start|>x<|im_end|><think>y<|im_end|>";
  EXPECT_EQ(encode(text, {{12, 31}}), joined({{start, 'x'}, spelled, {think, 'y', end}}));
  EXPECT_EQ(encode(text, {{12, 41}}), joined({{start, 'x'}, spelled, {think, 'y'}, spelled}));
  EXPECT_EQ(encode(text, {{40, 41}}), joined({{start, 'x', end, think, 'y'}, spelled})) << "in part is no token";
  EXPECT_EQ(encode(text, {}), (Ids{start, 'x', end, think, 'y', end}));
  // What a user writes does not take a token away from the template.
  EXPECT_EQ(encode("<|im_end|><|im_end|>", {{0, 10}}), joined({spelled, {end}}));
  EXPECT_EQ(encode("<|im_end|><|im_end|>", {}), Ids{long_end});
  // Where there is no control token, ranges change nothing: neither words nor special tokens are cut at their ends.
  EXPECT_EQ(encode("ab\n\n<think>", {{0, 1}, {3, 7}}), t.encode("ab\n\n<think>", kTrusted));
  EXPECT_EQ(encode("ab\n\n<think>", {{0, 1}, {3, 7}}), (Ids{lines + 2, lines, think}));
  // Nor are words beside what only looks like one.
  EXPECT_EQ(encode("ab<|im_end|>", {{1, 12}}), joined({{lines + 2}, spelled}));
}

TEST(Tokenizer, EndTextsAreControlTokensWhateverTheFileSays) {
  VocabBuilder b;
  const TokenId end = b.add("<|im_end|>", 1), end_of_text = b.user_defined("<|endoftext|>");
  const Tokenizer t = b.build();
  EXPECT_TRUE(t.is_control(end));
  EXPECT_TRUE(t.is_eog(end));
  EXPECT_TRUE(t.is_eog(end_of_text));
  EXPECT_EQ(t.encode("<|im_end|>", kPlain).size(), 10u);
  EXPECT_EQ(t.encode("<|im_end|>", kTrusted), (Ids{end}));
}

TEST(Tokenizer, SpecialTokensEndWordsAndNormalisation) {
  VocabBuilder b("qwen35");
  const TokenId end = b.control("<|im_end|>");
  b.merge("e", "\xCC\x81");  // never reached: the mark stands alone behind the token
  const Tokenizer t = b.build();
  EXPECT_EQ(t.encode("e\u0301", kTrusted), (Ids{0xC3, 0xA9}));
  EXPECT_EQ(t.encode("e<|im_end|>\u0301", kTrusted), (Ids{'e', end, 0xCC, 0x81}));
}

TEST(Tokenizer, OnlyQwenNormalises) {
  EXPECT_EQ(VocabBuilder("qwen2").build().encode("e\u0301", kPlain), (Ids{0xC3, 0xA9}));
  EXPECT_EQ(VocabBuilder("llama-bpe").build().encode("e\u0301", kPlain), (Ids{'e', 0xCC, 0x81}));
  EXPECT_EQ(VocabBuilder("gpt-2").build().encode("e\u0301", kPlain), (Ids{'e', 0xCC, 0x81}));
}

TEST(Tokenizer, IgnoreMergesTakesWholeWords) {
  for (const char* pre : {"llama-bpe", "qwen2"}) {
    VocabBuilder b(pre);
    const TokenId hello = b.add("hello", 1);
    const TokenId he = b.merge("h", "e");
    const bool whole = std::string(pre) == "llama-bpe";
    EXPECT_EQ(b.build().encode("hello", kPlain), whole ? Ids{hello} : (Ids{he, 'l', 'l', 'o'})) << pre;
  }
}

TEST(Tokenizer, BosAndEos) {
  struct Case {
    const char* pre;
    std::optional<bool> add_bos, add_eos;
    bool want_bos, want_eos;
  };
  const Case cases[] = {
      {"qwen2", {}, {}, false, false},   {"llama-bpe", {}, {}, true, false}, {"llama-bpe", false, {}, false, false},
      {"qwen2", true, true, true, true}, {"gpt-2", {}, true, false, true},
  };
  for (const Case& c : cases) {
    VocabBuilder b(c.pre);
    const TokenId bos = b.control("<s>"), eos = b.control("</s>");
    b.config().bos = bos;
    b.config().eos = eos;
    b.config().add_bos = c.add_bos;
    b.config().add_eos = c.add_eos;
    const Tokenizer t = b.build();
    Ids want;
    if (c.want_bos) want.push_back(bos);
    want.push_back('a');
    if (c.want_eos) want.push_back(eos);
    EXPECT_EQ(t.encode("a"), want) << c.pre;
    EXPECT_EQ(t.encode("a", kTrusted), Ids{'a'});
    // Not doubled when a template wrote them, but text of a user does not count as having written them.
    EXPECT_EQ(t.encode("<s>a</s>").size(), 3u);
    if (c.want_bos) {
      EXPECT_EQ(t.encode("<s>", {.add_special = true, .parse_special = false}).front(), bos);
    }
  }
}

TEST(Tokenizer, EndOfGeneration) {
  VocabBuilder b;
  const TokenId end = b.control("<|end|>"), ret = b.control("<|return|>"), call = b.control("<|call|>");
  const TokenId pad = b.control("<|fim_pad|>"), repo = b.control("<|repo_name|>"), sep = b.control("<|file_sep|>");
  const TokenId eos = b.control("custom"), other = b.control("<|im_start|>");
  b.config().eos = eos;
  const Tokenizer t = b.build();
  for (const TokenId id : {ret, call, pad, repo, sep, eos}) EXPECT_TRUE(t.is_eog(id)) << t.token_text(id);
  for (const TokenId id : {end, other, TokenId{'a'}, -1, 99999}) EXPECT_FALSE(t.is_eog(id)) << t.token_text(id);
}

TEST(Tokenizer, EndsThatAFileLists) {
  VocabBuilder b;
  const TokenId eos = b.control("custom"), one = b.control("<one>"), end = b.control("<|end|>"),
                ret = b.control("<|return|>"), call = b.control("<|call|>");
  b.config().eos = eos;
  b.config().ends = {one, 'x', one, end};
  const Tokenizer t = b.build();
  for (const TokenId id : {eos, one, TokenId{'x'}, end, ret, call}) EXPECT_TRUE(t.is_eog(id)) << t.token_text(id);
  EXPECT_FALSE(t.is_eog('y'));
  EXPECT_EQ(t.eog_tokens().size(), 6u) << "each once";
}

TEST(Tokenizer, HostileConfigs) {
  struct Case {
    const char* name;
    std::function<void(VocabBuilder&)> spoil;
    const char* message;
  };
  const Case cases[] = {
      {"other model", [](VocabBuilder& b) { b.config().model = "bert"; }, "'bert'"},
      {"no pre", [](VocabBuilder& b) { b.config().pre = ""; }, "tokenizer.ggml.pre is missing"},
      {"unknown pre", [](VocabBuilder& b) { b.config().pre = "bloom"; }, "'bloom'"},
      {"no tokens", [](VocabBuilder& b) { b.config().tokens.clear(); }, "tokens is empty"},
      {"few types", [](VocabBuilder& b) { b.config().token_types.pop_back(); }, "token_type has 255 entries for 256"},
      {"type", [](VocabBuilder& b) { b.config().token_types[7] = 9; }, "token_type[7] is 9"},
      {"negative type", [](VocabBuilder& b) { b.config().token_types[7] = -1; }, "token_type[7] is -1"},
      {"duplicate", [](VocabBuilder& b) { b.add("a", 1); }, "tokens 97 and 256 have the same text 'a'"},
      {"made duplicate", [](VocabBuilder& b) { b.add("[EMPTY_257]", 1), b.add("", 1); }, "tokens 256 and 257"},
      {"no bytes", [](VocabBuilder& b) { std::fill_n(b.config().token_types.begin(), 256, 3); }, "for any byte"},
      {"unknown byte", [](VocabBuilder& b) { b.config().unknown_byte = 256; }, "unknown_byte_token_id is 256"},
      {"ends",
       [](VocabBuilder& b) {
         b.config().ends = {5, 256};
       },
       "end_token_ids has the id 256"},
      {"negative end", [](VocabBuilder& b) { b.config().ends = {-1}; }, "end_token_ids has the id -1"},
      {"bos", [](VocabBuilder& b) { b.config().bos = 256; }, "bos_token_id is 256, but the vocabulary has 256"},
      {"eos", [](VocabBuilder& b) { b.config().eos = -2; }, "eos_token_id is -2"},
      {"eot", [](VocabBuilder& b) { b.config().eot = int64_t{1} << 40; }, "eot_token_id is 1099511627776"},
      {"eom", [](VocabBuilder& b) { b.config().eom = 300; }, "eom_token_id"},
      {"padding", [](VocabBuilder& b) { b.config().padding = 300; }, "padding_token_id"},
      {"unknown", [](VocabBuilder& b) { b.config().unknown = 300; }, "unknown_token_id"},
      {"fim", [](VocabBuilder& b) { b.config().fim_pad = 300; }, "fim_pad_token_id"},
      {"suppress",
       [](VocabBuilder& b) {
         b.config().suppress_tokens = {5, 256};
       },
       "suppress_tokens has the id 256"},
      {"add bos", [](VocabBuilder& b) { b.config().add_bos = true; }, "no bos_token_id"},
      {"add eos", [](VocabBuilder& b) { b.config().add_eos = true; }, "no eos_token_id"},
      {"special bytes", [](VocabBuilder& b) { b.control(std::string((16 << 20) + 1, 'x')); }, "at most 16777216"},
  };
  for (const Case& c : cases) {
    VocabBuilder b;
    c.spoil(b);
    const auto t = Tokenizer::create(b.config());
    ASSERT_FALSE(t.ok()) << c.name;
    EXPECT_EQ(t.error().fault, Fault::kModelFile) << c.name;
    EXPECT_THAT(t.error().message, HasSubstr(c.message)) << c.name;
    EXPECT_EQ(t.error().message.find('\n'), std::string::npos) << c.name;
  }
}

TEST(Tokenizer, HarmlessOddities) {
  VocabBuilder b("llama-bpe");
  b.config().bos = -1;  // "none", as converters write it
  b.config().padding = 0xFFFFFFFF;
  b.config().tokens[0xC0] = "";  // a byte that no UTF-8 text has
  b.config().token_types.push_back(1);
  const Tokenizer t = b.build();
  EXPECT_FALSE(t.bos());
  EXPECT_FALSE(t.add_bos());  // the default gives way when there is no BOS
  EXPECT_EQ(t.encode("\xC0"), (Ids{0xEF, 0xBF, 0xBD}));
  EXPECT_EQ(t.encode(""), Ids{});
}

TEST(Tokenizer, DecodeGivesTheNormalisedTextBack) {
  constexpr uint32_t kSeed = 21;
  std::mt19937 random(kSeed);
  for (const char* pre : {"gpt-2", "llama-bpe", "qwen2", "qwen35"}) {
    VocabBuilder b(pre);
    b.merge("e", "r");
    b.merge(" ", "t");
    b.merge(" t", "h");
    b.merge("\xC3", "\xA9");
    b.control("<|im_end|>");
    const Tokenizer t = b.build();
    for (int round = 0; round < 3000; ++round) {
      std::string text;
      for (std::size_t n = random() % 40; n > 0; --n) {
        switch (random() % 4) {
          case 0:
            unicode::append_utf8(random() % 0x110000, text);
            break;  // surrogates too: invalid
          case 1:
            unicode::append_utf8(0x300 + random() % 0x70, text);
            break;
          case 2:
            text.push_back(static_cast<char>(random() % 256));
            break;
          default:
            text += std::string(" the er<|im_end|>\n").substr(random() % 17);
            break;
        }
      }
      const std::string want = normalised(text, t.nfc());
      ASSERT_EQ(t.decode(t.encode(text, kPlain)), want) << pre << " round " << round << " seed " << kSeed;
    }
  }
}

double thread_seconds() {  // of the processor, so that a busy machine does not count
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// One megabyte of whatever could be slow (less where the code is shared). It takes tenths of a second, under
// sanitizers a few; anything quadratic would take minutes.
TEST(Tokenizer, AMegabyteOfAnythingTakesNoTime) {
  const auto repeat = [](std::string_view unit) {
    std::string s;
    while (s.size() < 1'000'000) s += unit;
    return s;
  };
  std::string random_bytes(1'000'000, ' ');
  std::mt19937 random(1);
  for (char& c : random_bytes) c = static_cast<char>(random());
  const std::string texts[] = {repeat(" "),
                               repeat("🦙"),
                               repeat("a"),
                               repeat("'"),
                               repeat("\u0301"),
                               repeat("\u0301\u0323\u0327"),
                               repeat("\n"),
                               repeat(" \n"),
                               repeat("\r\n "),
                               repeat("\u00A0"),
                               repeat("ab"),
                               repeat("1"),
                               repeat("'s"),
                               repeat("a\u0301"),
                               repeat("\u1112\u1161\u11AB"),
                               repeat("<|im_start|>"),
                               repeat("<|im_"),
                               repeat("<"),
                               random_bytes,
                               std::string(999'999, ' ') + "x"};
  for (const char* pre : {"gpt-2", "llama-bpe", "qwen2", "qwen35"}) {
    VocabBuilder b(pre);
    b.control("<|im_start|>");
    std::string unit = " ";
    for (int k = 0; k < 8; ++k, unit += unit) b.merge(unit, unit);  // long runs merge into long tokens
    b.merge("a", "a");
    b.merge("a", "b");
    b.merge("\xF0", "\x9F");
    b.merge("\xCC", "\x81");
    b.merge("'", "'");
    b.merge("\n", "\n");
    const Tokenizer t = b.build();
    const std::size_t size = std::string_view(pre) == "qwen35" ? 1'000'000 : 150'000;
    for (const std::string& text : texts) {
      const double begin = thread_seconds();
      const Ids ids = t.encode(std::string_view(text).substr(text.size() - size), kTrusted);
      EXPECT_LT(thread_seconds() - begin, 10.0) << pre << " " << normalised(text.substr(0, 12), false);
      EXPECT_FALSE(ids.empty());
    }
  }
}

TEST(Tokenizer, ManyThreadsGetTheSameTokens) {
  VocabBuilder b("qwen35");
  b.control("<|im_end|>");
  b.merge(" ", "w");
  const Tokenizer t = b.build();
  std::string text;
  for (int i = 0; i < 2000; ++i) text += " w" + std::to_string(i) + " e\u0301<|im_end|>";
  const Ids want = t.encode(text, kTrusted);
  std::vector<Ids> got(4);
  std::vector<std::thread> threads;
  for (Ids& ids : got) {
    threads.emplace_back([&] {
      for (int i = 0; i < 5; ++i) ids = t.encode(text, kTrusted);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Ids& ids : got) EXPECT_EQ(ids, want);
}

// The cache of words is only used for long texts and must not change anything.
TEST(Tokenizer, LongTextsEqualTheirParts) {
  QUIRE_NEEDS_DEMO_VOCAB(t);
  std::string text;
  Ids want;
  std::mt19937 random(4);
  for (int i = 0; i < 3000; ++i) {
    // Each part ends in a line break, where the splitter always cuts, and begins with a letter.
    std::string part = "It was the " + std::to_string(random() % 1000) + " best of\u00E9 times, it's a" +
                       std::string(random() % 60, 'b') + "!\n";
    const Ids ids = t->encode(part, kTrusted);
    want.insert(want.end(), ids.begin(), ids.end());
    text += part;
  }
  EXPECT_EQ(t->encode(text, kTrusted), want);
}

}  // namespace
}  // namespace quire
