// Which tokens a vocabulary has for filling in, by their names (by ids of a file: tests/server/infill_test.cpp).
#include "tokenizer/infill_tokens.h"

#include <gtest/gtest.h>

#include "tokenizer/vocab_builder.h"

namespace quire::test {
namespace {

std::optional<InfillTokens> tokens_of(const VocabBuilder& b) {
  return find_infill_tokens(b.build(), std::move(gguf::Metadata::make({})).value());
}

TEST(InfillTokens, AreFoundByTheNamesOfAFamily) {
  for (const auto& [prefix, suffix, middle] : {std::tuple{"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"},
                                               {"<fim_prefix>", "<fim_suffix>", "<fim_middle>"},
                                               {"<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"},
                                               {"<PRE>", "<SUF>", "<MID>"}}) {
    VocabBuilder b;
    const TokenId m = b.control(middle), s = b.control(suffix), p = b.control(prefix);
    const auto found = tokens_of(b);
    ASSERT_TRUE(found) << prefix;
    EXPECT_EQ(found->prefix, p);
    EXPECT_EQ(found->suffix, s);
    EXPECT_EQ(found->middle, m);
    EXPECT_FALSE(found->repository || found->separator);
    const TokenId file = b.control("<|file_sep|>"), project = b.control("<|repo_name|>");
    EXPECT_EQ(tokens_of(b)->separator, file);
    EXPECT_EQ(tokens_of(b)->repository, project);
  }
}

TEST(InfillTokens, AreAllOrNone) {
  VocabBuilder b;
  EXPECT_FALSE(tokens_of(b));
  b.control("<|fim_prefix|>"), b.control("<|fim_suffix|>");
  EXPECT_FALSE(tokens_of(b));
  b.control("<fim_middle>");
  EXPECT_FALSE(tokens_of(b)) << "of another family";
}

}  // namespace
}  // namespace quire::test
