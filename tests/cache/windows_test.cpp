// Layers that attend to a window: their blocks, which sequences give back as they go on, and what a prefix cache finds
// of them.
#include <gtest/gtest.h>

#include <deque>
#include <random>

#include "cache/prefix_rig.h"

namespace quire {
namespace {

constexpr int64_t kTokens = 40;  // of a window: three or four blocks

TEST(WindowTable, GivesBackWhatLiesWhollyBeforeAPosition) {
  BlockPool pool(8);
  BlockTable t;
  ASSERT_TRUE(t.reserve(pool, 0, 80));
  const int32_t filler = window_filler(pool);
  EXPECT_EQ(filler, 8) << "no block of the pool's";
  t.release_before(pool, 31, filler, false);
  EXPECT_EQ(t.first(), 1) << "position 31 lies in the second block";
  t.release_before(pool, 32, filler, false);
  EXPECT_EQ(t.first(), 2);
  t.release_before(pool, 16, filler, false);
  EXPECT_EQ(t.held(), 3) << "what is gone is gone";
  EXPECT_EQ(t.blocks()[0], filler);
  EXPECT_EQ(t.blocks()[1], filler);
  EXPECT_EQ(pool.used_count(), 3);
  EXPECT_EQ(t.blocks_needed(96), 1);
  ASSERT_TRUE(t.reserve(pool, 80, 96));
  t.truncate(pool, 40);
  EXPECT_EQ(t.held(), 1);
  t.clear(pool);
  EXPECT_EQ(t.held(), 0);
  EXPECT_EQ(t.first(), 0);
  EXPECT_EQ(pool.used_count(), 0);
  EXPECT_TRUE(pool.check().ok());
}

TEST(WindowTable, WithoutACacheTakesTheSameFewBlocksAgain) {
  BlockPool pool(100);
  BlockTable t;
  int32_t highest = 0;
  for (int64_t position = 0; position < 1500; ++position) {
    ASSERT_TRUE(t.reserve(pool, position, position + 1));
    highest = std::max(highest, t.blocks().back());
    t.release_before(pool, position + 2 - kTokens, window_filler(pool), true);
    ASSERT_LE(t.held(), 4);
  }
  EXPECT_LT(highest, 5) << "memory that nobody has touched is not needed";
  EXPECT_TRUE(pool.check().ok());
}

// A cache with windows, and sequences that give back what no row looks at any more.
struct WindowRig {
  BlockPool blocks, windows;
  StatePool slots{0};
  PrefixCache cache;

  explicit WindowRig(int32_t total = 64, int32_t window_blocks = 64)
      : blocks(total), windows(window_blocks), cache(blocks, slots, -1, nullptr, {&windows, kTokens}) {}

  struct Running {
    BlockTable table, windows;
    int64_t found = 0;
  };
  PrefixCache::Match find(const Text& t) {
    PrefixCache::Match m;
    cache.find(t.prompt(), m);
    return m;
  }
  Running begin(const Text& t) {
    Running r;
    const PrefixCache::Match m = find(t);
    if (m.usable > 0) cache.take(m, r.table, &r.windows);
    r.found = m.usable;
    return r;
  }
  // Of the prompt, in chunks of 64. `keep`: places that are kept.
  void compute(Running& r, const Text& t, const std::vector<int64_t>& keep = {}) {
    const auto end = static_cast<int64_t>(t.tokens.size());
    for (int64_t at = r.found; at < end; at += 64) {
      const int64_t to = std::min(end, at + 64);
      const int32_t needed = r.table.blocks_needed(to);
      if (needed > blocks.free_count()) cache.make_room(needed);
      ASSERT_TRUE(r.table.reserve(blocks, at, to));
      ASSERT_TRUE(r.windows.reserve(windows, at, to));
      cache.publish(t.prompt(), to, r.table, &r.windows);
      for (const int64_t k : keep)
        if (k > at && k <= to) cache.keep_windows(t.prompt(), k);
      r.windows.release_before(windows, to - kTokens + 1, window_filler(windows), false);
      cache.end_step();
    }
  }
  Running run(const Text& t, const std::vector<int64_t>& keep = {}) {
    Running r = begin(t);
    compute(r, t, keep);
    expect_books();
    return r;
  }
  // Takes every block that is free, and gives them back with something else in them.
  void overwrite_free_windows() {
    BlockTable t;
    if (windows.free_count() > 0) t.reserve(windows, 0, int64_t{windows.free_count()} * kBlockTokens);
  }
  void expect_books() {
    for (const Status& s : {blocks.check(), windows.check(), cache.check()})
      EXPECT_TRUE(s.ok()) << (s.ok() ? "" : s.error().message);
  }
};

TEST(PrefixWindows, AHitNeedsTheKeysThatItsFirstTokenLooksAt) {
  WindowRig rig;
  const Text text(tokens(300));
  { const auto done = rig.run(text); }
  EXPECT_EQ(rig.find(text).usable, 256) << "what is free still holds what it held";
  const auto again = rig.begin(text);
  EXPECT_EQ(again.found, 256);
  EXPECT_EQ(again.windows.capacity(), 256);
  EXPECT_EQ(again.windows.first(), (256 - kTokens + 1) / kBlockTokens) << "the blocks of the last 39 positions";
  EXPECT_EQ(again.windows.held(), 3);
  EXPECT_EQ(rig.windows.used_count(), 3);
  rig.expect_books();
}

TEST(PrefixWindows, WhatIsKeptOutlivesWhatIsNot) {
  WindowRig rig;
  const Text text(tokens(300));
  { const auto done = rig.run(text, {128}); }
  rig.overwrite_free_windows();
  const PrefixCache::Match m = rig.find(text);
  EXPECT_EQ(m.blocks, 256) << "other layers have all of it";
  EXPECT_EQ(m.usable, 128);
  EXPECT_EQ(rig.cache.explain(text.prompt(), m).reason, PrefixMiss::kNoCheckpoint);
  rig.expect_books();
  // Computed again from there, everything is there again.
  { const auto done = rig.run(text, {256}); }
  rig.overwrite_free_windows();
  EXPECT_EQ(rig.find(text).usable, 256);
  // What is kept makes room only where nothing is free; the least recently used first.
  BlockTable others;
  ASSERT_TRUE(others.reserve(rig.windows, 0, int64_t{rig.windows.free_count() + 3} * kBlockTokens));
  EXPECT_EQ(rig.find(text).usable, 256) << "the place at 128 went";
  ASSERT_TRUE(others.reserve(rig.windows, others.capacity(), others.capacity() + kBlockTokens));
  EXPECT_EQ(rig.find(text).usable, 0);
  EXPECT_EQ(rig.find(text).blocks, 256);
  rig.expect_books();
}

TEST(PrefixWindows, WhatIsTakenIsKept) {
  WindowRig rig;
  const Text text(tokens(200));
  { const auto done = rig.run(text); }
  { const auto hit = rig.begin(text); }
  rig.overwrite_free_windows();
  EXPECT_EQ(rig.find(text).usable, 192);
}

TEST(PrefixWindows, SharedOnesAreNeverWritten) {
  WindowRig rig;
  const Text text(tokens(200));
  const auto first = rig.run(text);
  auto second = rig.begin(text);
  ASSERT_EQ(second.found, 192);
  for (int64_t i = second.windows.first(); i < 12; ++i) {
    const int32_t block = second.windows.blocks()[static_cast<size_t>(i)];
    EXPECT_EQ(rig.windows.references(BlockId{block}), i < first.windows.first() ? 1 : 2);
  }
  rig.compute(second, text);
  EXPECT_NE(first.windows.blocks()[12], second.windows.blocks()[12]);
  rig.expect_books();
}

TEST(PrefixWindows, GoWithTheirChunks) {
  WindowRig rig(20);
  { const auto done = rig.run(Text(tokens(200, 1)), {128, 192}); }
  EXPECT_GT(rig.windows.cached_count(), 0);
  rig.cache.make_room(20);
  EXPECT_EQ(rig.windows.cached_count(), 0);
  EXPECT_EQ(rig.windows.free_count(), 64);
  rig.expect_books();
}

// A prefix shorter than the window needs all of its window blocks.
TEST(PrefixWindows, BeginAtTheBeginning) {
  BlockPool blocks(64), windows(64);
  StatePool slots(0);
  PrefixCache cache(blocks, slots, -1, nullptr, {&windows, 1000});
  const Text text(tokens(300));
  BlockTable table, window_table;
  ASSERT_TRUE(table.reserve(blocks, 0, 300));
  ASSERT_TRUE(window_table.reserve(windows, 0, 300));
  cache.publish(text.prompt(), 300, table, &window_table);
  window_table.clear(windows);
  table.clear(blocks);
  PrefixCache::Match m;
  cache.find(text.prompt(), m);
  ASSERT_EQ(m.usable, 256);
  cache.take(m, table, &window_table);
  EXPECT_EQ(window_table.first(), 0);
  EXPECT_EQ(window_table.held(), 16);
}

// Many texts that share beginnings, in pools too small for them, against a model that knows what each block holds.
TEST(PrefixWindows, RandomUseKeepsTheBooksAndTheContent) {
  constexpr uint64_t kSeed = 20261125;
  constexpr int32_t kWindows = 70;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  std::mt19937_64 rng(kSeed);
  const auto pick = [&](int64_t n) { return static_cast<int64_t>(rng() % static_cast<uint64_t>(n)); };
  WindowRig rig(160, kWindows);
  std::vector<std::vector<TokenId>> content(kWindows);  // of window blocks: whole prefixes, so that nothing is confused
  struct One {
    Text text;
    WindowRig::Running r;
    int64_t at;
  };
  std::deque<One> running;
  int hits = 0, less = 0;
  for (int step = 0; step < 6000; ++step) {
    if (running.size() < 6 && pick(2) == 0) {
      Text t(tokens(1 + pick(400), static_cast<TokenId>(pick(4)), 64 * pick(5) + pick(3)), pick(5) == 0 ? "s" : "");
      const PrefixCache::Match m = rig.find(t);
      if ((std::ssize(t.tokens) + 15) / 16 - m.usable / 16 + m.unused <= rig.blocks.available() - 60) {
        WindowRig::Running r = rig.begin(t);
        hits += r.found > 0;
        less += m.usable < m.blocks;
        ASSERT_EQ(r.windows.capacity(), r.found);
        for (int64_t i = std::max<int64_t>(0, r.found - kTokens + 1) / 16; i < r.found / 16; ++i)
          ASSERT_EQ(content[static_cast<size_t>(r.windows.blocks()[static_cast<size_t>(i)])], t.first(16 * i + 16));
        running.push_back({std::move(t), std::move(r), m.usable});
      }
    }
    if (!running.empty()) {
      const auto chosen = running.begin() + pick(std::ssize(running));
      One& o = *chosen;
      const int64_t to = std::min(std::ssize(o.text.tokens), o.at + 64);
      const int32_t needed = o.r.table.blocks_needed(to);
      if (needed > rig.blocks.free_count()) rig.cache.make_room(needed);
      ASSERT_TRUE(o.r.table.reserve(rig.blocks, o.at, to));
      ASSERT_TRUE(o.r.windows.reserve(rig.windows, o.at, to)) << "8 blocks for each that runs";
      for (int64_t i = o.at / 16; i < to / 16; ++i)
        content[static_cast<size_t>(o.r.windows.blocks()[static_cast<size_t>(i)])] = o.text.first(16 * i + 16);
      rig.cache.publish(o.text.prompt(), to, o.r.table, &o.r.windows);
      if (pick(4) == 0) rig.cache.keep_windows(o.text.prompt(), to / 64 * 64);
      o.r.windows.release_before(rig.windows, to - kTokens + 1, window_filler(rig.windows), false);
      o.at = to;
      rig.cache.end_step();
      if (to == std::ssize(o.text.tokens) || pick(20) == 0) running.erase(chosen);
    }
    if (step % 50 == 0) rig.expect_books();
  }
  running.clear();
  rig.expect_books();
  EXPECT_EQ(rig.windows.used_count(), 0);
  EXPECT_GT(hits, 300);
  EXPECT_GT(less, 30) << "and sometimes windows are missing";
}

}  // namespace
}  // namespace quire
