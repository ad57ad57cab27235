// Strings tokenised by the Hugging Face tokenizers library with the demo models' tokenizer.json (special
// tokens parsed, none added).
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "demo_vocab.h"
#include "tokenizer/detokenizer.h"
#include "tokenizer/unicode.h"

namespace quire {
namespace {

struct Golden {
  std::string text;
  std::vector<TokenId> ids;
};

std::vector<Golden> read_golden() {
  std::ifstream in(std::string(QUIRE_SOURCE_DIR) + "/tests/data/golden/tokenizer.jsonl");
  std::vector<Golden> cases;
  for (std::string line; std::getline(in, line);) {
    const auto j = nlohmann::json::parse(line);
    cases.push_back({j["text"], j["ids"]});
  }
  return cases;
}

TEST(Golden, EveryStringExact) {
  QUIRE_NEEDS_DEMO_VOCAB(tokenizer);
  const auto cases = read_golden();
  ASSERT_EQ(cases.size(), 240u);
  for (const Golden& g : cases) {
    EXPECT_EQ(tokenizer->encode(g.text, {.add_special = false, .parse_special = true}), g.ids) << g.text;
  }
}

TEST(Golden, DecodingGivesTheNormalisedTextBack) {
  QUIRE_NEEDS_DEMO_VOCAB(tokenizer);
  for (const Golden& g : read_golden()) {
    std::u32string code_points;
    unicode::append_code_points(g.text, code_points);
    unicode::nfc(code_points);
    std::string normalised;
    for (const char32_t c : code_points) unicode::append_utf8(c, normalised);
    EXPECT_EQ(tokenizer->decode(g.ids, true), normalised);

    StreamDetokenizer stream(*tokenizer, true);
    std::string streamed;
    for (const TokenId id : g.ids) streamed += stream.push(id);
    EXPECT_EQ(streamed + stream.flush(), normalised);
  }
}

TEST(Golden, DemoModelFacts) {
  QUIRE_NEEDS_DEMO_VOCAB(tokenizer);
  EXPECT_EQ(tokenizer->size(), 4096);
  EXPECT_EQ(tokenizer->eos(), 4089);
  EXPECT_FALSE(tokenizer->bos());
  EXPECT_FALSE(tokenizer->add_bos());
  EXPECT_EQ(std::vector(tokenizer->eog_tokens().begin(), tokenizer->eog_tokens().end()),
            (std::vector<TokenId>{4087, 4089}));
  EXPECT_NE(tokenizer->chat_template().find("im_start"), std::string_view::npos);
  EXPECT_EQ(tokenizer->token_text(4088), "<|im_start|>");
  // Control tokens only from trusted text, user-defined ones from any.
  const auto user = tokenizer->encode("<|im_start|><think>", {.add_special = false, .parse_special = false});
  EXPECT_EQ(std::count(user.begin(), user.end(), 4088), 0);
  EXPECT_EQ(user.back(), 4094);
}

}  // namespace
}  // namespace quire
