// Layers that attend to a window: their blocks, which sequences give back as they go on, and what a prefix cache finds
// of them.
#include <gtest/gtest.h>

#include <deque>
#include <random>

#include "cache/kv_event_reader.h"
#include "cache/prefix_rig.h"

namespace quire {
namespace {

constexpr int64_t kTokens = 40;  // of a window: three or four blocks

TEST(WindowTable, GivesBackWhatLiesWhollyBeforeAPosition) {
  BlockPool pool(8);
  BlockTable t;
  ASSERT_TRUE(t.reserve(pool, 0, 80));
  const int32_t filler = window_filler(pool.total());
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
    t.release_before(pool, position + 2 - kTokens, window_filler(pool.total()), true);
    ASSERT_LE(t.held(), 4);
  }
  EXPECT_LT(highest, 5) << "memory that nobody has touched is not needed";
  EXPECT_TRUE(pool.check().ok());
}

// A cache with pools of windows, and sequences that give back what no row looks at any more.
struct WindowRig {
  std::vector<int64_t> tokens;  // of each window
  BlockPool blocks;
  std::vector<BlockPool> windows;
  StatePool slots{0};
  PrefixCache cache;

  explicit WindowRig(int32_t total = 64, int32_t window_blocks = 64, std::vector<int64_t> of = {kTokens})
      : tokens(std::move(of)),
        blocks(total),
        windows(tokens.size(), BlockPool(window_blocks)),
        cache(blocks, slots, -1, nullptr, pools()) {}
  std::vector<PrefixCache::Windows> pools() {
    std::vector<PrefixCache::Windows> all;
    for (size_t w = 0; w < tokens.size(); ++w) all.push_back({&windows[w], tokens[w]});
    return all;
  }

  struct Running {
    std::vector<BlockTable> tables;
    int64_t found = 0;
    BlockTable& windows(size_t w = 0) { return tables[1 + w]; }
    const BlockTable& windows(size_t w = 0) const { return tables[1 + w]; }
  };
  PrefixCache::Match find(const Text& t) {
    PrefixCache::Match m;
    cache.find(t.prompt(), m);
    return m;
  }
  Running begin(const Text& t) {
    Running r;
    r.tables.resize(1 + windows.size());
    const PrefixCache::Match m = find(t);
    if (m.usable > 0) cache.take(m, r.tables);
    r.found = m.usable;
    return r;
  }
  // Blocks for positions [at, to), whose content is there then.
  void reserve(Running& r, const Text& t, int64_t at, int64_t to) {
    const int32_t needed = r.tables[kKvPool].blocks_needed(to);
    if (needed > blocks.free_count()) cache.make_room(needed);
    ASSERT_TRUE(r.tables[kKvPool].reserve(blocks, at, to));
    for (size_t w = 0; w < windows.size(); ++w)
      ASSERT_TRUE(r.windows(w).reserve(windows[w], at, to)) << "enough for each that runs";
    cache.publish(t.prompt(), to, r.tables);
  }
  void end_step(Running& r, int64_t to) {
    for (size_t w = 0; w < windows.size(); ++w)
      r.windows(w).release_before(windows[w], to - tokens[w] + 1, window_filler(windows[w].total()), false);
    cache.end_step();
  }
  // Of the prompt, in chunks of 64. `keep`: places that are kept.
  void compute(Running& r, const Text& t, const std::vector<int64_t>& keep = {}) {
    const auto end = static_cast<int64_t>(t.tokens.size());
    for (int64_t at = r.found; at < end; at += 64) {
      const int64_t to = std::min(end, at + 64);
      reserve(r, t, at, to);
      for (const int64_t k : keep)
        if (k > at && k <= to) cache.keep_windows(t.prompt(), k);
      end_step(r, to);
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
    if (windows[0].free_count() > 0) t.reserve(windows[0], 0, int64_t{windows[0].free_count()} * kBlockTokens);
  }
  void expect_books() {
    std::vector<Status> all = {blocks.check(), cache.check()};
    for (const BlockPool& w : windows) all.push_back(w.check());
    for (const Status& s : all) EXPECT_TRUE(s.ok()) << (s.ok() ? "" : s.error().message);
  }
};

TEST(PrefixWindows, AHitNeedsTheKeysThatItsFirstTokenLooksAt) {
  WindowRig rig;
  const Text text(tokens(300));
  { const auto done = rig.run(text); }
  EXPECT_EQ(rig.find(text).usable, 256) << "what is free still holds what it held";
  const auto again = rig.begin(text);
  EXPECT_EQ(again.found, 256);
  EXPECT_EQ(again.windows().capacity(), 256);
  EXPECT_EQ(again.windows().first(), (256 - kTokens + 1) / kBlockTokens) << "the blocks of the last 39 positions";
  EXPECT_EQ(again.windows().held(), 3);
  EXPECT_EQ(rig.windows[0].used_count(), 3);
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
  ASSERT_TRUE(others.reserve(rig.windows[0], 0, int64_t{rig.windows[0].free_count() + 3} * kBlockTokens));
  EXPECT_EQ(rig.find(text).usable, 256) << "the place at 128 went";
  ASSERT_TRUE(others.reserve(rig.windows[0], others.capacity(), others.capacity() + kBlockTokens));
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

// Others are told of places that are kept, and that these are gone when their blocks are handed out.
TEST(PrefixWindows, OthersAreToldOfWhatIsKept) {
  WindowRig rig;
  const auto reader = std::make_shared<KvEventReader>();
  rig.cache.tell(reader, open_salts(kHash));
  const Text text(tokens(300));
  const auto known = [&] {
    rig.cache.send_events();
    rig.expect_books();
    return reader->known(text.tokens);
  };
  { const auto done = rig.run(text); }
  EXPECT_EQ(known(), 0) << "the next prompt may take its blocks";
  rig.overwrite_free_windows();
  { const auto done = rig.run(text, {128, 256}); }
  EXPECT_EQ(known(), 256);
  // Kept blocks are handed out one by one: never is more told of than is there.
  BlockTable others;
  ASSERT_TRUE(others.reserve(rig.windows[0], 0, int64_t{rig.windows[0].free_count()} * kBlockTokens));
  int changes = 0;
  for (int64_t last = 256; rig.windows[0].available() > 0;) {
    ASSERT_TRUE(others.reserve(rig.windows[0], others.capacity(), others.capacity() + kBlockTokens));
    ASSERT_EQ(known(), rig.find(text).usable);
    changes += std::exchange(last, known()) != known();
  }
  EXPECT_EQ(known(), 0);
  EXPECT_GE(changes, 1);
}

TEST(PrefixWindows, SharedOnesAreNeverWritten) {
  WindowRig rig;
  const Text text(tokens(200));
  const auto first = rig.run(text);
  auto second = rig.begin(text);
  ASSERT_EQ(second.found, 192);
  for (int64_t i = second.windows().first(); i < 12; ++i) {
    const int32_t block = second.windows().blocks()[static_cast<size_t>(i)];
    EXPECT_EQ(rig.windows[0].references(BlockId{block}), i < first.windows().first() ? 1 : 2);
  }
  rig.compute(second, text);
  EXPECT_NE(first.windows().blocks()[12], second.windows().blocks()[12]);
  rig.expect_books();
}

TEST(PrefixWindows, GoWithTheirChunks) {
  WindowRig rig(20);
  { const auto done = rig.run(Text(tokens(200, 1)), {128, 192}); }
  EXPECT_GT(rig.windows[0].cached_count(), 0);
  rig.cache.make_room(20);
  EXPECT_EQ(rig.windows[0].cached_count(), 0);
  EXPECT_EQ(rig.windows[0].free_count(), 64);
  rig.expect_books();
}

// A prefix shorter than the window needs all of its window blocks.
TEST(PrefixWindows, BeginAtTheBeginning) {
  WindowRig rig(64, 64, {1000});
  const Text text(tokens(300));
  {
    auto r = rig.begin(text);
    rig.reserve(r, text, 0, 300);
  }
  const auto again = rig.begin(text);
  ASSERT_EQ(again.found, 256);
  EXPECT_EQ(again.windows().first(), 0);
  EXPECT_EQ(again.windows().held(), 16);
}

// A prompt goes on only where nothing that any of its windows looks back on is missing.
TEST(PrefixWindows, OfSeveralLengthsNeedsAllOfThem) {
  WindowRig rig(64, 64, {kTokens, 100});
  const Text text(tokens(300));
  { const auto done = rig.run(text, {128, 256}); }
  EXPECT_EQ(rig.find(text).usable, 256);
  const auto again = rig.begin(text);
  EXPECT_EQ(again.windows(0).held(), 3);
  EXPECT_EQ(again.windows(1).held(), 7) << "the last 99 positions";
  // Of the longer ones, the oldest that are kept are those of the place at 128.
  const auto take = [&](int32_t blocks) {
    BlockTable t;
    ASSERT_TRUE(t.reserve(rig.windows[1], 0, int64_t{blocks} * kBlockTokens));
  };
  take(rig.windows[1].free_count() + 1);
  EXPECT_EQ(rig.find(Text(tokens(130))).usable, 0) << "the shorter ones alone are not enough";
  EXPECT_EQ(rig.find(text).usable, 256);
  rig.expect_books();
}

// Many texts that share beginnings, in pools too small for them, against a model that knows what each block holds.
void use_at_random(const std::vector<int64_t>& windows, int least_hits, int least_missing) {
  constexpr uint64_t kSeed = 20261125;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  std::mt19937_64 rng(kSeed);
  const auto pick = [&](int64_t n) { return static_cast<int64_t>(rng() % static_cast<uint64_t>(n)); };
  // Six that run hold a window and the rows of a step each.
  const int64_t of_each = (*std::ranges::max_element(windows) + 14) / 16 + 5;
  const auto of_windows = static_cast<int32_t>(6 * of_each + 22);
  WindowRig rig(160, of_windows, windows);
  // Of each pool's blocks: whole prefixes, so that nothing is confused.
  std::vector content(windows.size(), std::vector<std::vector<TokenId>>(static_cast<size_t>(of_windows)));
  const auto content_of = [&](const WindowRig::Running& r, size_t w, int64_t i) -> std::vector<TokenId>& {
    return content[w][static_cast<size_t>(r.windows(w).blocks()[static_cast<size_t>(i)])];
  };
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
        for (size_t w = 0; w < windows.size(); ++w) {
          ASSERT_EQ(r.windows(w).capacity(), r.found);
          for (int64_t i = std::max<int64_t>(0, r.found - windows[w] + 1) / 16; i < r.found / 16; ++i)
            ASSERT_EQ(content_of(r, w, i), t.first(16 * i + 16));
        }
        running.push_back({std::move(t), std::move(r), m.usable});
      }
    }
    if (!running.empty()) {
      const auto chosen = running.begin() + pick(std::ssize(running));
      One& o = *chosen;
      const int64_t to = std::min(std::ssize(o.text.tokens), o.at + 64);
      rig.reserve(o.r, o.text, o.at, to);
      for (size_t w = 0; w < windows.size(); ++w)
        for (int64_t i = o.at / 16; i < to / 16; ++i) content_of(o.r, w, i) = o.text.first(16 * i + 16);
      if (pick(4) == 0) rig.cache.keep_windows(o.text.prompt(), to / 64 * 64);
      rig.end_step(o.r, to);
      o.at = to;
      if (to == std::ssize(o.text.tokens) || pick(20) == 0) running.erase(chosen);
    }
    if (step % 50 == 0) rig.expect_books();
  }
  running.clear();
  rig.expect_books();
  for (const BlockPool& w : rig.windows) EXPECT_EQ(w.used_count(), 0);
  EXPECT_GT(hits, least_hits);
  EXPECT_GT(less, least_missing) << "and sometimes windows are missing";
}

TEST(PrefixWindows, RandomUseKeepsTheBooksAndTheContent) {
  use_at_random({kTokens}, 300, 30);
}

TEST(PrefixWindows, OfSeveralLengthsToo) {
  use_at_random({kTokens, 100}, 300, 30);
}

}  // namespace
}  // namespace quire
