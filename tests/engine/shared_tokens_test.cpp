// Prompts are held once: what the answers to one request share are its tokens, until somebody changes a copy.
#include "engine/shared_tokens.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

TEST(SharedTokens, CopiesShareUntilOneIsChanged) {
  SharedTokens first = {1, 2, 3};
  const SharedTokens second = first;
  EXPECT_EQ(first.data(), second.data());
  first.edit()[0] = 7;
  EXPECT_NE(first.data(), second.data());
  EXPECT_EQ(first, (SharedTokens{7, 2, 3}));
  EXPECT_EQ(second, (SharedTokens{1, 2, 3}));
  const TokenId* const own = first.data();
  first.edit()[1] = 8;
  EXPECT_EQ(first.data(), own) << "nobody else has them";
}

TEST(SharedTokens, NoneAreLikeNoTokens) {
  const SharedTokens none;
  EXPECT_TRUE(none.empty());
  EXPECT_EQ(none, SharedTokens(std::vector<TokenId>{}));
}

}  // namespace
}  // namespace quire
