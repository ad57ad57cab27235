#include "core/cuda/weight_order.h"

#include <gtest/gtest.h>

namespace quire::cuda {
namespace {

const std::byte kMemory[8] = {};
WeightOrder::Read at(int i, int64_t bytes = 1) {
  return {WeightOrder::Range{kMemory + i, bytes}, {}};
}

TEST(WeightOrder, KnowsWhatComesNextOnceItWasRecorded) {
  WeightOrder order;
  order.begin_step(false);
  order.read(at(0), false);
  EXPECT_EQ(order.next()[0].data, nullptr) << "nothing was recorded";

  for (int step = 0; step < 2; ++step) {  // the second recording takes the place of the first
    order.begin_step(true);
    for (const int i : {0, 1, 2, 3, 3, 3}) order.read(at(i), true);  // the last one over parts of its rows
    EXPECT_EQ(order.next()[0].data, nullptr);
  }
  order.begin_step(false);
  EXPECT_EQ(order.next()[0].data, kMemory);
  order.read(at(0), false);
  EXPECT_EQ(order.next()[0].data, kMemory + 1);
  order.read(at(2), false);  // without 1
  EXPECT_EQ(order.next()[0].data, kMemory + 3);
  order.read(at(5), false);  // unheard of
  EXPECT_EQ(order.next()[0].data, kMemory + 3);
  order.read(at(3), false);
  EXPECT_EQ(order.next()[0].data, nullptr);
}

TEST(ShareOut, TakesLinesEvenlyAndNothingTwice) {
  constexpr int64_t kMany = 5 * kLineBytes * 100 + 77;
  const WeightOrder::Read weights{WeightOrder::Range{kMemory, kMany}, {kMemory, kMany / 2}};
  for (const int64_t most : {int64_t{0}, int64_t{1000}, int64_t{20'000}, int64_t{1} << 30}) {
    const Prefetch p = share_out(weights, 5, most);
    int64_t all = 0;
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(p.bytes[i] % kLineBytes, 0);
      EXPECT_EQ(p.stride[i] % kLineBytes, 0);
      EXPECT_LE(p.bytes[i], p.stride[i]) << "shares lie apart";
      EXPECT_LE(4 * p.stride[i] + p.bytes[i], weights[static_cast<size_t>(i)].bytes) << "and within";
      all += 5 * p.bytes[i];
    }
    EXPECT_LE(all, most);
    if (most > kMany) {
      EXPECT_GT(all, kMany * 3 / 2 - 2 * 5 * kLineBytes);
    }
  }
  const Prefetch none = share_out({}, 5, 1000);
  EXPECT_EQ(none.bytes[0] + none.bytes[1], 0);
}

}  // namespace
}  // namespace quire::cuda
