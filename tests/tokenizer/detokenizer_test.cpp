#include "tokenizer/detokenizer.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "tokenizer/unicode.h"
#include "vocab_builder.h"

namespace quire {
namespace {

using test::VocabBuilder;
using Ids = std::vector<TokenId>;

TEST(Detokenizer, NeverShowsHalfACharacter) {
  const Tokenizer t = VocabBuilder().build();
  struct Step {
    uint8_t byte;
    std::string shown;
  };
  const std::string r = "\xEF\xBF\xBD";
  const std::vector<Step> steps = {
      {'a', "a"}, {0xF0, ""}, {0x9F, ""},     {0xA6, ""},    {0x99, "🦙"},  // four bytes
      {0xE4, ""}, {0xBD, ""}, {'x', r + "x"},                                 // broken off by a letter
      {0xC3, ""}, {0xC3, r},  {0xA9, "é"},                                    // broken off by another start
      {0x80, r},  {0xFF, r},  {0xE0, ""},     {0x80, r + r},                  // can never be valid
  };
  StreamDetokenizer stream(t);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(stream.push(steps[i].byte), steps[i].shown) << "step " << i;
    EXPECT_LE(stream.held_bytes(), 3u);
  }
  EXPECT_EQ(stream.flush(), "");
  stream.push(0xF0);
  stream.push(0x9F);
  EXPECT_EQ(stream.flush(), r);
  EXPECT_EQ(stream.push('b'), "b");
}

TEST(Detokenizer, TokenTypes) {
  VocabBuilder b;
  const TokenId control = b.control("<|im_end|>"), user = b.user_defined("<think> é");
  const TokenId unknown = b.add("<unk>", 2), unused = b.add("[PAD1]", 5), byte = b.add("<0x41>", 6);
  const TokenId bad_byte = b.add("<0x4>", 6), plain = b.add("two words", 1), empty = b.add("", 1);
  const Tokenizer t = b.build();
  EXPECT_EQ(t.decode(Ids{control}), "");
  EXPECT_EQ(t.decode(Ids{control}, true), "<|im_end|>");
  EXPECT_EQ(t.decode(Ids{unknown}), "");
  EXPECT_EQ(t.decode(Ids{unknown}, true), "<unk>");
  EXPECT_EQ(t.decode(Ids{user}), "<think> é");
  EXPECT_EQ(t.decode(Ids{unused, bad_byte}, true), "");
  EXPECT_EQ(t.decode(Ids{byte}), "A");
  EXPECT_EQ(t.decode(Ids{plain}), "two words");
  EXPECT_EQ(t.token_text(empty), "[EMPTY_" + std::to_string(empty) + "]");
  EXPECT_EQ(t.decode(Ids{-1, t.size(), 1 << 30, 'a'}), "a");
  EXPECT_EQ(t.token_text(-1), "");
}

TEST(Detokenizer, StreamingEqualsTheWhole) {
  VocabBuilder b;
  b.control("<|im_end|>");
  b.user_defined("🦙");
  b.merge("\xF0", "\x9F");
  b.merge("\xF0\x9F", "\xA6");
  b.merge("\x99", "a");
  b.merge("\xC3", "\xA9");
  const Tokenizer t = b.build();
  constexpr uint32_t kSeed = 3;
  std::mt19937 random(kSeed);
  for (int round = 0; round < 20000; ++round) {
    Ids ids(random() % 20);
    for (TokenId& id : ids) {
      constexpr uint8_t kParts[] = {0xF0, 0x9F, 0xA6, 0x99, 0xE4, 0xBD, 0xA0, 0xC3, 0xA9, 0xED, 0xA0, 0x80, 'a'};
      id = random() % 2 != 0 ? static_cast<TokenId>(random() % static_cast<uint32_t>(t.size()))
                             : kParts[random() % std::size(kParts)];
    }
    const bool special = random() % 2 != 0;
    StreamDetokenizer stream(t, special);
    std::string text;
    for (const TokenId id : ids) {
      const std::string shown = stream.push(id);
      ASSERT_TRUE(unicode::is_valid_utf8(shown));
      ASSERT_LE(stream.held_bytes(), 3u);
      text += shown;
    }
    ASSERT_EQ(text + stream.flush(), t.decode(ids, special)) << "round " << round << " seed " << kSeed;
  }
}

}  // namespace
}  // namespace quire
