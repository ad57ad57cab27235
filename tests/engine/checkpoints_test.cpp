#include "engine/checkpoints.h"

#include <gtest/gtest.h>

#include <vector>

namespace quire {
namespace {

std::vector<int64_t> all(const Checkpoints& c) {
  std::vector<int64_t> at;
  for (int64_t p = c.next(0); p > 0; p = c.next(p)) at.push_back(p);
  return at;
}
using List = std::vector<int64_t>;

TEST(Checkpoints, LieBeforeTheEndAndRegularlyInLongPrompts) {
  EXPECT_EQ(all({}), List{});
  EXPECT_EQ(all({1, 0, {}}), List{});
  EXPECT_EQ(all({64, 0, {}}), List{}) << "one token must be left to run";
  EXPECT_EQ(all({65, 0, {}}), List{64});
  EXPECT_EQ(all({200, 0, {}}), List{192});
  EXPECT_EQ(all({1500, 0, {}}), (List{1024, 1472}));
  EXPECT_EQ(all({1024, 0, {}}), List{960});
  EXPECT_EQ(all({20000, 0, {}}), (List{1024, 2048, 3072, 4096, 5120, 6144, 7168, 8192, 12288, 16384, 19968}));
}

TEST(Checkpoints, StayClearOfAVolatileTail) {
  EXPECT_EQ(all({200, 8, {}}), List{192});
  EXPECT_EQ(all({200, 9, {}}), List{128});
  EXPECT_EQ(all({200, 500, {}}), List{});
}

TEST(Checkpoints, LieWhereTheyAreAskedFor) {
  const int64_t asked[] = {100, -5, 1 << 20, 64, 130};
  Checkpoints c(200, 0, asked);
  EXPECT_EQ(all(c), (List{64, 128, 192}));
  EXPECT_FALSE(c.add(70)) << "not a boundary";
  EXPECT_FALSE(c.add(256));
  EXPECT_TRUE(c.contains(128));
  EXPECT_FALSE(c.contains(0));
  Checkpoints many(100000, 0, {});
  int kept = 0;
  for (int64_t at = 64; at < 6400; at += 64) kept += many.add(at) && at % 1024 != 0;
  EXPECT_EQ(kept, 12) << "their number is bounded";
}

}  // namespace
}  // namespace quire
