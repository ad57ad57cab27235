// The engine's numbers: what each event adds, and what a reader on another thread may see.
#include "engine/engine_counters.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace quire {
namespace {

StepRecord step(int32_t prompt_rows, int32_t decode_rows, double seconds) {
  StepRecord r;
  r.prompt_rows = prompt_rows, r.decode_rows = decode_rows, r.device_seconds = seconds;
  return r;
}

TEST(EngineCounters, ShareAStepsTimeByItsRows) {
  EngineCounters counters;
  counters.count_step(step(30, 10, 4.0));
  counters.count_step(step(0, 5, 1.0));
  counters.count_step(step(0, 0, 7.0));  // moves and copies alone: nobody's time
  const StepStats s = counters.read();
  EXPECT_EQ(s.steps, 3);
  EXPECT_EQ(s.prompt_tokens, 30);
  EXPECT_EQ(s.decode_tokens, 15);
  EXPECT_DOUBLE_EQ(s.prompt_seconds, 3.0);
  EXPECT_DOUBLE_EQ(s.decode_seconds, 2.0);
}

TEST(EngineCounters, CountDraftsByDepth) {
  EngineCounters counters;
  counters.count_drafts(3, 2);
  counters.count_drafts(4, 0);
  counters.count_drafts(1, 1);
  const StepStats s = counters.read();
  EXPECT_EQ(s.drafted_sequences, 3);
  EXPECT_EQ(s.drafts, 8);
  EXPECT_EQ(s.drafts_accepted, 3);
  EXPECT_EQ(s.accepted_at[0], 2);
  EXPECT_EQ(s.accepted_at[1], 1);
  EXPECT_EQ(s.accepted_at[2], 0);
}

TEST(EngineCounters, AddUpMasksAndTheHostsTime) {
  EngineCounters counters;
  StepRecord r;
  r.masks = 5, r.mask_seconds = 0.5, r.slow_masks = 2, r.waited_for_masks = true;
  counters.count_masks(r);
  r.masks = 1, r.mask_seconds = 0.25, r.slow_masks = 0, r.waited_for_masks = false;
  counters.count_masks(r);
  counters.count_host_seconds(1.5);
  counters.count_host_seconds(0.5);
  const StepStats s = counters.read();
  EXPECT_EQ(s.masks, 6);
  EXPECT_EQ(s.slow_masks, 2);
  EXPECT_EQ(s.mask_waits, 1);
  EXPECT_DOUBLE_EQ(s.mask_seconds, 0.75);
  EXPECT_DOUBLE_EQ(s.host_seconds, 2.0);
  EXPECT_EQ(s.steps, 0) << "a step counts when it is retired";
}

TEST(EngineCounters, SayOfTheCachesWhatHoldsNow) {
  EngineCounters counters;
  CacheManager::Counts counts{.queries = 100, .hits = 60, .preemptions = 3, .swapped_out = 7, .swapped_in = 5};
  counts.misses[static_cast<size_t>(PrefixMiss::kNew)] = 4;
  PoolUses pools;
  pools.add({.name = "kv", .free = 1, .cached = 2, .used = 3});
  counters.note_caches(
      counts, pools,
      {.pages_used = 8, .pages_total = 9, .states = 10, .bytes_stored = 11, .bytes_loaded = 12, .tokens_loaded = 13});
  counters.note_caches(
      counts, pools,
      {.pages_used = 6, .pages_total = 9, .states = 10, .bytes_stored = 11, .bytes_loaded = 12, .tokens_loaded = 13});
  const StepStats s = counters.read();
  EXPECT_EQ(s.prefix_queries, 100) << "these are no differences";
  EXPECT_EQ(s.prefix_hits, 60);
  EXPECT_EQ(s.prefix_misses[static_cast<size_t>(PrefixMiss::kNew)], 4);
  EXPECT_EQ(s.preemptions, 3);
  EXPECT_EQ(s.blocks_swapped_out, 7);
  EXPECT_EQ(s.blocks_swapped_in, 5);
  EXPECT_EQ(s.pools[0].total(), 6);
  EXPECT_EQ(s.host_pages_used, 6);
  EXPECT_EQ(s.host_pages_total, 9);
  EXPECT_EQ(s.host_states, 10);
  EXPECT_EQ(s.host_bytes_stored, 11);
  EXPECT_EQ(s.host_bytes_loaded, 12);
  EXPECT_EQ(s.host_tokens_loaded, 13);
}

// A reader never sees a half of what one call adds.
TEST(EngineCounters, AreReadWhole) {
  EngineCounters counters;
  std::atomic<bool> done{false};
  int64_t reads = 0, torn = 0;
  std::thread reader([&] {
    do {
      const StepStats s = counters.read();
      torn += s.prompt_tokens != 2 * s.steps || s.decode_tokens != s.steps || s.drafts != 2 * s.drafts_accepted;
      ++reads;
    } while (!done);
  });
  for (int i = 0; i < 20000; ++i) {
    counters.count_step(step(2, 1, 0.0));
    counters.count_drafts(2, 1);
  }
  done = true;
  reader.join();
  EXPECT_EQ(torn, 0) << "of " << reads;
  EXPECT_EQ(counters.read().steps, 20000);
}

}  // namespace
}  // namespace quire
