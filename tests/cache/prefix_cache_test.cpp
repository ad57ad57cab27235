// The tree of prefixes: what is found and why not, who makes room for whom, and books that balance.
#include "cache/prefix_cache.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <random>

#include "cache/prefix_rig.h"

namespace quire {
namespace {

TEST(PrefixCache, FindsWhatWasComputedByWholeChunks) {
  Rig rig;
  const Text t(tokens(200));
  EXPECT_EQ(rig.find(t).usable, 0);
  rig.compute(t);
  EXPECT_EQ(rig.blocks.cached_count(), 12) << "three chunks; the rest is free again";
  EXPECT_EQ(rig.find(t).usable, 192);
  EXPECT_EQ(rig.find(t).unused, 12);
  EXPECT_EQ(rig.find(Text(tokens(192))).usable, 128) << "a token must be left to run";
  EXPECT_EQ(rig.find(Text(tokens(193))).usable, 192);
  EXPECT_EQ(rig.find(Text(tokens(1000))).usable, 192);
  EXPECT_EQ(rig.find(Text(tokens(64))).usable, 0);
}

TEST(PrefixCache, SharesTheVeryBlocks) {
  Rig rig;
  const Text t(tokens(200));
  const BlockTable first = rig.compute(t);
  const BlockTable second = rig.compute(Text(tokens(150)));
  EXPECT_EQ(rig.find(t).unused, 0);
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(first.blocks()[i], second.blocks()[i]);
  EXPECT_NE(first.blocks()[8], second.blocks()[8]) << "the rest of its last chunk is its own";
  EXPECT_EQ(rig.blocks.used_count(), 13 + 2);
}

TEST(PrefixCache, OneTokenMakesADifference) {
  Rig rig;
  rig.compute(Text(tokens(300)));
  for (const int64_t at : {0, 1, 63, 64, 100, 127, 128, 255, 256}) {
    std::vector<TokenId> other = tokens(300);
    ++other[static_cast<size_t>(at)];
    const Text t(other);
    EXPECT_EQ(rig.find(t).usable, at / 64 * 64) << at;
    const PrefixCache::Miss miss = rig.cache.explain(t.prompt(), rig.find(t));
    if (at == 0) {
      EXPECT_EQ(miss.reason, PrefixMiss::kNew);
    } else if (at < 256) {
      EXPECT_EQ(miss.reason, PrefixMiss::kDiverged) << at;
      EXPECT_EQ(miss.diverged_at, at);
    } else {
      EXPECT_EQ(miss.reason, PrefixMiss::kNone) << "all whole chunks are there";
    }
  }
}

TEST(PrefixCache, SaltsDoNotMeet) {
  Rig rig;
  rig.compute(Text(tokens(200), "alice"));
  EXPECT_EQ(rig.find(Text(tokens(200), "bob")).usable, 0);
  EXPECT_EQ(rig.why(Text(tokens(200), "bob")), PrefixMiss::kNew);
  EXPECT_EQ(rig.find(Text(tokens(200), "alice")).usable, 192);
  EXPECT_EQ(rig.why(Text(tokens(200, 3), "bob")), PrefixMiss::kNew);
}

// Why no more was found is the same with and without another salt's prompts, whatever they have in common with one's
// own and however many they are.
TEST(PrefixCache, WhatIsThereUnderAnotherSaltIsToldToNobody) {
  std::mt19937_64 rng(7);
  const auto pick = [&](int64_t n) { return static_cast<int64_t>(rng() % static_cast<uint64_t>(n)); };
  Rig with(4096), without(4096);
  for (int i = 0; i < 400; ++i) {
    const auto some = [&] { return tokens(1 + pick(300), static_cast<TokenId>(pick(3)), pick(200)); };
    with.compute(Text(some(), "alice"));
    with.compute(Text(some(), i % 2 == 0 ? "alice" : "carol"));
    const Text own(some(), "bob");
    const PrefixCache::Match m = with.find(own), alone = without.find(own);
    const PrefixCache::Miss why = with.cache.explain(own.prompt(), m);
    const PrefixCache::Miss expected = without.cache.explain(own.prompt(), alone);
    ASSERT_EQ(m.usable, alone.usable);
    ASSERT_EQ(why.reason, expected.reason);
    ASSERT_EQ(why.diverged_at, expected.diverged_at);
    with.compute(own);
    without.compute(own);
  }
  EXPECT_EQ(with.cache.stats().evictions, 0);
}
// Salts share lists by a few bits of their hashes: some of so many are in that of the one that has a prompt.
TEST(PrefixCache, WhoSharesAListOfBeginningsIsToldOfNoOther) {
  Rig rig(256);
  rig.compute(Text(tokens(200), "alice"));
  for (int i = 0; i < 4000; ++i) {
    const Text own(tokens(200, 9, 30), fmt::format("stranger {}", i));
    ASSERT_EQ(rig.why(own), PrefixMiss::kNew) << i;
  }
}
TEST(PrefixCache, NorDoOthersHideOnesOwnPrompts) {
  Rig rig(8192);
  rig.compute(Text(tokens(200), "bob"));
  for (TokenId i = 1; i < 400; ++i) rig.compute(Text(tokens(65, i, 10), "alice"));
  const Text other(tokens(200, 9, 30), "bob");
  const PrefixCache::Miss miss = rig.cache.explain(other.prompt(), rig.find(other));
  EXPECT_EQ(miss.reason, PrefixMiss::kDiverged);
  EXPECT_EQ(miss.diverged_at, 30);
}

// What a prompt found before stands while it is there, whatever else makes room.
TEST(PrefixCache, OnlyItsOwnPrefixThatGoesIsLookedForAgain) {
  Rig rig(32);
  rig.compute(Text(tokens(256, 1)));
  const Text t(tokens(256, 2));
  rig.compute(t);
  PrefixCache::Match m = rig.find(t);
  const int32_t last = m.last;
  rig.cache.make_room(12);  // of the first text
  rig.cache.find(t.prompt(), m);
  EXPECT_EQ(m.usable, 192);
  EXPECT_EQ(m.last, last);
  rig.cache.make_room(24);  // and of this one
  rig.cache.find(t.prompt(), m);
  EXPECT_EQ(m.usable, 128);
  rig.cache.make_room(32);
  rig.compute(Text(tokens(256, 3)));  // in the same nodes
  rig.cache.find(t.prompt(), m);
  EXPECT_EQ(m.usable, 0);
}

TEST(PrefixCache, SaysWhyNotMoreWasFound) {
  Rig rig(16, 4);
  EXPECT_EQ(rig.why(Text(tokens(64))), PrefixMiss::kBelowBlock);
  EXPECT_EQ(rig.why(Text(tokens(65))), PrefixMiss::kNew);
  rig.compute(Text(tokens(200)));
  EXPECT_EQ(rig.why(Text(tokens(200))), PrefixMiss::kNoCheckpoint);
  rig.compute(Text(tokens(200)), {192});
  EXPECT_EQ(rig.why(Text(tokens(200))), PrefixMiss::kNone);
  rig.cache.make_room(16);
  EXPECT_EQ(rig.why(Text(tokens(200))), PrefixMiss::kEvicted);
  for (int i = 0; i < kPrefixMisses; ++i) EXPECT_FALSE(prefix_miss_name(static_cast<PrefixMiss>(i)).empty());
}

// Whoever could make two prompts hash alike would still be served his own only.
TEST(PrefixCache, EqualHashesOfDifferentTokensAreTold) {
  Rig rig(64, 8);
  const Text honest(tokens(200));
  rig.compute(honest, {128, 192});
  Text hostile(tokens(200, 5, 70));  // another text from token 70 on, with the honest one's hashes
  hostile.hashes = honest.hashes;
  EXPECT_EQ(rig.find(hostile).blocks, 64);
  EXPECT_EQ(rig.find(hostile).usable, 0);
  rig.compute(hostile, {64, 128, 192});  // its states are not attached to the honest one's nodes
  EXPECT_EQ(rig.cache.states_held(), 3);
  EXPECT_EQ(rig.find(honest).usable, 192);
  EXPECT_EQ(rig.find(hostile).usable, 64);
  Text first(tokens(200, 7));  // different from the start
  first.hashes = honest.hashes;
  EXPECT_EQ(rig.find(first).blocks, 0);
  rig.compute(first, {64});
  EXPECT_EQ(rig.find(honest).usable, 192);
  // All hashes of all chunks the same.
  Text same(tokens(300, 9));
  for (Hash128& h : same.hashes.at) h = honest.hashes.at[0];
  rig.compute(same, {64, 128});
  EXPECT_EQ(rig.find(same).usable, 0);
}

TEST(PrefixCache, RecurrentModelsGoOnOnlyFromSavedStates) {
  Rig rig(64, 2);
  const Text t(tokens(400));
  rig.compute(t, {128});
  EXPECT_EQ(rig.find(t).usable, 128);
  EXPECT_EQ(rig.find(t).blocks, 384);
  EXPECT_TRUE(rig.cache.has_state(t.prompt(), 128));
  EXPECT_FALSE(rig.cache.has_state(t.prompt(), 192));
  BlockTable table;
  const StateSlot taken = rig.cache.take(rig.find(t), {&table, 1});
  EXPECT_TRUE(taken.valid());
  // Two slots: the second state is free, a third one takes the place of the older, but not of one just being read.
  const StateSlot second = rig.cache.allocate_state();
  EXPECT_NE(second, taken);
  EXPECT_FALSE(rig.cache.allocate_state().valid());
  rig.cache.publish_state(t.prompt(), 384, second);
  rig.cache.end_step();
  const StateSlot third = rig.cache.allocate_state();
  EXPECT_EQ(third, second) << "not used since: the path to 128 was";
  rig.cache.publish_state(t.prompt(), 320, third);
  EXPECT_EQ(rig.find(t).usable, 320);
  const StateSlot again = rig.cache.allocate_state();
  rig.cache.publish_state(t.prompt(), 128, again);
  table.clear(rig.blocks);
  rig.expect_books();
}

TEST(PrefixCache, AStateForAPrefixThatIsGoneGoesBack) {
  Rig rig(64, 2);
  const Text t(tokens(200));
  const StateSlot s = rig.cache.allocate_state();
  rig.cache.publish_state(t.prompt(), 128, s);
  EXPECT_EQ(rig.cache.states_held(), 0);
  rig.expect_books();
}

TEST(PrefixCache, LeavesMakeRoomFirstAndTheLeastRecentlyUsed) {
  Rig rig(25);
  rig.compute(Text(tokens(128, 1)));
  rig.compute(Text(tokens(128, 2)));
  rig.compute(Text(tokens(128, 3)));
  rig.compute(Text(tokens(129, 1)));  // used again
  EXPECT_EQ(rig.blocks.free_count(), 1);
  rig.cache.make_room(4);
  EXPECT_EQ(rig.find(Text(tokens(200, 2))).usable, 64) << "its second chunk went";
  rig.cache.make_room(8);
  EXPECT_EQ(rig.find(Text(tokens(200, 2))).usable, 0);
  EXPECT_EQ(rig.find(Text(tokens(200, 3))).usable, 128);
  rig.cache.make_room(16);
  EXPECT_EQ(rig.find(Text(tokens(200, 3))).usable, 0);
  EXPECT_EQ(rig.find(Text(tokens(200, 1))).usable, 128);
  rig.expect_books();
}

TEST(PrefixCache, ChunksWithoutAnyStateAboveMakeRoomBeforeAll) {
  Rig rig(32, 8);
  rig.compute(Text(tokens(256, 1)), {128});
  rig.compute(Text(tokens(256, 2)), {256});
  rig.cache.make_room(8);  // the last two chunks of the first text, which nobody can go on from
  EXPECT_EQ(rig.find(Text(tokens(300, 1))).blocks, 128);
  EXPECT_EQ(rig.find(Text(tokens(300, 2))).blocks, 256);
  rig.cache.make_room(12);
  EXPECT_EQ(rig.find(Text(tokens(300, 1))).usable, 0) << "the state went with its chunk";
  EXPECT_EQ(rig.cache.states_held(), 1);
  rig.expect_books();
}

TEST(PrefixCache, WhatIsInUseStays) {
  Rig rig(20);
  const BlockTable used = rig.compute(Text(tokens(128, 1)));
  rig.compute(Text(tokens(128, 2)));
  rig.cache.make_room(20);
  EXPECT_EQ(rig.blocks.free_count(), 12);
  EXPECT_EQ(rig.find(Text(tokens(200, 1))).usable, 128);
  rig.expect_books();
}

// Many texts that share beginnings, in a pool too small for them, against a model that knows what each block holds.
TEST(PrefixCache, RandomUseKeepsTheBooksAndTheContent) {
  for (const int32_t states : {-1, 6}) {
    constexpr uint64_t kSeed = 20261122;
    SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", " << states << " states");
    std::mt19937_64 rng(kSeed);
    const auto pick = [&](int64_t n) { return static_cast<int64_t>(rng() % static_cast<uint64_t>(n)); };
    Rig rig(160, states);
    struct Running {
      Text text;
      BlockTable table;
    };
    std::deque<Running> running;
    std::vector<std::vector<TokenId>> content(160);
    std::map<int32_t, std::vector<TokenId>> state_content;  // of a slot: the prefix that it stands for
    int hits = 0, evicted = 0;
    for (int step = 0; step < 4000; ++step) {
      Text t(tokens(1 + pick(400), static_cast<TokenId>(pick(4)), 64 * pick(5) + pick(3)), pick(5) == 0 ? "s" : "");
      const PrefixCache::Match m = rig.find(t);
      const auto end = static_cast<int64_t>(t.tokens.size());
      const int64_t needed = (end + 15) / 16 - m.usable / 16;
      if (needed + m.unused <= rig.blocks.available()) {
        Running r{t, {}};
        if (m.usable > 0) {
          const StateSlot from = rig.cache.take(m, {&r.table, 1});
          ++hits;
          for (int64_t i = 0; i < m.usable; ++i)
            ASSERT_EQ(content[static_cast<size_t>(r.table.blocks()[static_cast<size_t>(i / 16)])]
                             [static_cast<size_t>(i % 16)],
                      t.tokens[static_cast<size_t>(i)]);
          if (states > 0) {
            ASSERT_TRUE(from.valid());
            ASSERT_TRUE(std::equal(t.tokens.begin(), t.tokens.begin() + m.usable, state_content[from.v].begin(),
                                   state_content[from.v].end()));
          }
        }
        rig.cache.make_room(static_cast<int32_t>(needed));
        ASSERT_TRUE(r.table.reserve(rig.blocks, m.usable, end));
        for (int64_t i = m.usable; i < end; ++i) {
          auto& block = content[static_cast<size_t>(r.table.blocks()[static_cast<size_t>(i / 16)])];
          if (i % 16 == 0) block.clear();
          block.push_back(t.tokens[static_cast<size_t>(i)]);
        }
        rig.cache.publish(t.prompt(), end, {&r.table, 1});
        const int64_t at = end > 64 ? 64 * (1 + pick(longest_prefix(end) / 64)) : 0;
        if (states > 0 && at > 0 && !rig.cache.has_state(t.prompt(), at))
          if (const StateSlot s = rig.cache.allocate_state(); s.valid()) {
            state_content[s.v].assign(t.tokens.begin(), t.tokens.begin() + at);
            rig.cache.publish_state(t.prompt(), at, s);
          }
        running.push_back(std::move(r));
      }
      rig.cache.end_step();
      while (running.size() > 5 || (!running.empty() && pick(3) == 0))
        running.erase(running.begin() + pick(std::ssize(running)));
      if (step % 50 == 0) rig.expect_books();
      evicted = static_cast<int>(rig.cache.stats().evictions);
    }
    running.clear();
    rig.expect_books();
    EXPECT_GT(hits, 500);
    EXPECT_GT(evicted, 500);
    EXPECT_EQ(rig.blocks.used_count(), 0);
  }
}

}  // namespace
}  // namespace quire
