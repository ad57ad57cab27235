// A prefix cache as large as that of a big card: making room takes a bounded time for each block, whatever lies there.
#include <gtest/gtest.h>

#include <ctime>

#include "cache/prefix_rig.h"

namespace quire {
namespace {

constexpr int32_t kNodes = 100'000, kBlocks = kNodes * 4, kChunksOfPrompt = 250;
// As the engine asks (CacheManager::make_room).
constexpr int32_t kMore = kBlocks / 256;

// Of this thread: others keep the machine busy.
double cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// 400 prompts that fill the pool; with recurrent layers each has a state at its end, as long as there are slots.
void fill(Rig& rig, bool states) {
  for (TokenId p = 0; p < kNodes / kChunksOfPrompt; ++p) {
    const Text t(tokens(kChunksOfPrompt * kChunkTokens, p));
    BlockTable table;
    ASSERT_TRUE(table.reserve(rig.blocks, 0, std::ssize(t.tokens)));
    rig.cache.publish(t.prompt(), std::ssize(t.tokens), {&table, 1});
    if (!states) continue;
    const StateSlot s = rig.cache.allocate_state();
    ASSERT_TRUE(s.valid());
    rig.cache.publish_state(t.prompt(), std::ssize(t.tokens), s);
  }
  ASSERT_EQ(rig.cache.stats().nodes, kNodes);
}

class PrefixSize : public testing::TestWithParam<int32_t> {};

TEST_P(PrefixSize, MakingRoomTakesABoundedTimeForEachBlock) {
  Rig rig(kBlocks, GetParam());
  fill(rig, GetParam() >= 0);
  int64_t freed = 0;
  double longest = 0;
  // New prompts of 2000 tokens, each of which takes what the oldest have. They run on: their blocks and those below
  // stay.
  std::vector<BlockTable> running;
  for (TokenId p = 1000; p < 2000; ++p) {
    const Text t(tokens(2048, p));
    BlockTable& table = running.emplace_back();
    const int32_t needed = table.blocks_needed(2048), before = rig.blocks.free_count();
    const double begin = cpu_seconds();
    if (needed > before) rig.cache.make_room(needed + kMore);
    longest = std::max(longest, cpu_seconds() - begin);
    freed += rig.blocks.free_count() - before;
    ASSERT_TRUE(table.reserve(rig.blocks, 0, 2048));
    rig.cache.publish(t.prompt(), 2048, {&table, 1});
    rig.cache.end_step();
  }
  ASSERT_GT(freed, 100'000);
  const double each = static_cast<double>(rig.cache.stats().looked_at) / static_cast<double>(freed);
  RecordProperty("nodes_looked_at_for_a_block", std::to_string(each));
  RecordProperty("longest_call_ms", std::to_string(longest * 1e3));
  EXPECT_LT(each, 2.0 * kNodes / kMore + 2);
  rig.expect_books();
}

INSTANTIATE_TEST_SUITE_P(Attention, PrefixSize, testing::Values(-1));
INSTANTIATE_TEST_SUITE_P(Recurrent, PrefixSize, testing::Values(400));

}  // namespace
}  // namespace quire
