// What of a prefix cache goes to the host's memory, comes back, and is forgotten: books that balance, and moves that
// keep what lies in blocks and states.
#include "cache/host_tier.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <random>
#include <set>

#include "cache/prefix_rig.h"

namespace quire {
namespace {

TEST(HostTier, WhatMakesRoomGoesThereAndComesBack) {
  Rig rig(16, -1, 32);
  const Text t(tokens(200));
  const std::vector<int32_t> before = [&] {
    const BlockTable table = rig.compute(t);
    return std::vector<int32_t>(table.blocks().begin(), table.blocks().end());
  }();
  rig.cache.make_room(16);
  EXPECT_EQ(rig.blocks.free_count(), 16);
  ASSERT_EQ(rig.host->outs().size(), 12u) << "three chunks";
  std::map<int32_t, int32_t> page_of;
  for (const HostMove& m : rig.host->outs()) {
    EXPECT_EQ(m.piece, -1);
    EXPECT_GE(m.page, Rig::kFirstPage);
    EXPECT_TRUE(page_of.emplace(m.device, m.page).second);
  }
  rig.cache.end_step();
  rig.expect_books();
  const PrefixCache::Match m = rig.find(t);
  EXPECT_EQ(m.usable, 192);
  EXPECT_EQ(m.moves, 12);
  EXPECT_EQ(m.unused, 12) << "as many blocks of the device as that takes";
  BlockTable table;
  EXPECT_FALSE(rig.cache.take(m, {&table, 1}).valid());
  EXPECT_EQ(table.capacity(), 0);
  EXPECT_EQ(rig.cache.blocks_to_load(m), 12);
  rig.cache.load(m, table, {});
  ASSERT_EQ(table.capacity(), 192);
  ASSERT_EQ(rig.host->ins().size(), 12u);
  for (size_t i = 0; i < 12; ++i) {
    EXPECT_EQ(rig.host->ins()[i].device, table.blocks()[i]);
    EXPECT_EQ(rig.host->ins()[i].page, page_of[before[i]]);
  }
  rig.cache.end_step();
  rig.expect_books();
  EXPECT_EQ(rig.find(t).moves, 0);
  // The copies stay: leaving the device again moves nothing.
  table.clear(rig.blocks);
  rig.cache.make_room(16);
  EXPECT_TRUE(rig.host->outs().empty());
  EXPECT_EQ(rig.find(t).moves, 12);
  rig.expect_books();
}

TEST(HostTier, StatesGoThereToo) {
  Rig rig(64, 1, 32);
  const Text a(tokens(200, 1)), b(tokens(200, 2));
  rig.compute(a, {192});
  const StateSlot slot = rig.cache.allocate_state();  // the only one: what it holds goes to the host
  ASSERT_TRUE(slot.valid());
  ASSERT_EQ(rig.host->outs().size(), static_cast<size_t>(Rig::kStatePages));
  for (int32_t i = 0; i < Rig::kStatePages; ++i) {
    EXPECT_EQ(rig.host->outs()[static_cast<size_t>(i)].device, slot.v);
    EXPECT_EQ(rig.host->outs()[static_cast<size_t>(i)].piece, i);
  }
  rig.cache.end_step();
  rig.compute(b);
  rig.cache.publish_state(b.prompt(), 192, slot);
  rig.expect_books();
  EXPECT_EQ(rig.find(a).usable, 192);
  EXPECT_EQ(rig.find(a).moves, Rig::kStatePages) << "its blocks are on the device";
  EXPECT_EQ(rig.why(a), PrefixMiss::kNone);
  EXPECT_TRUE(rig.cache.has_state(a.prompt(), 192));
  // The state that comes back takes the other one's slot, which goes to the host in the same step.
  BlockTable table;
  const PrefixCache::Match m = rig.find(a);
  EXPECT_FALSE(rig.cache.take(m, {&table, 1}).valid());
  EXPECT_EQ(rig.cache.load(m, table, StateSlot{4}), slot);
  EXPECT_EQ(rig.host->outs().size(), static_cast<size_t>(Rig::kStatePages));
  EXPECT_EQ(rig.host->ins().size(), static_cast<size_t>(Rig::kStatePages));
  // Now the only slot is being read: another state goes to the sequence itself.
  const PrefixCache::Match other = rig.find(b);
  BlockTable second;
  EXPECT_FALSE(rig.cache.take(other, {&second, 1}).valid());
  EXPECT_FALSE(rig.cache.load(other, second, StateSlot{4}).valid());
  EXPECT_EQ(rig.host->ins().back().device, 4);
  rig.cache.end_step();
  rig.expect_books();
}

TEST(HostTier, ForgetsTheLeastRecentlyUsedAndStatesBeforeTheirBlocks) {
  Rig rig(64, 4, 16);  // four chunks, or two and two states
  rig.compute(Text(tokens(128, 1)), {128});
  rig.compute(Text(tokens(128, 2)), {128});
  rig.compute(Text(tokens(128, 3)), {128});
  rig.cache.make_room(40 + 16);  // the first two, whole
  EXPECT_EQ(rig.find(Text(tokens(200, 1))).moves, 8);
  EXPECT_EQ(rig.find(Text(tokens(200, 2))).moves, 8);
  EXPECT_EQ(rig.host->free_count(), 0);
  rig.cache.end_step();
  rig.expect_books();
  rig.cache.make_room(64);  // the third takes the place of the oldest
  EXPECT_EQ(rig.find(Text(tokens(200, 1))).usable, 0);
  EXPECT_EQ(rig.why(Text(tokens(200, 1))), PrefixMiss::kEvicted);
  EXPECT_EQ(rig.find(Text(tokens(200, 2))).moves, 8);
  EXPECT_EQ(rig.find(Text(tokens(200, 3))).moves, 8);
  rig.cache.end_step();
  rig.expect_books();
  EXPECT_EQ(rig.cache.states_held(), 2) << "the first one's went with its blocks";
}

TEST(HostTier, TakesNothingThatNobodyCanGoOnFrom) {
  Rig rig(32, 4, 32);
  rig.compute(Text(tokens(256, 1)), {128});
  rig.cache.make_room(32);
  EXPECT_EQ(rig.find(Text(tokens(300, 1))).blocks, 128) << "the chunks above the state are gone";
  EXPECT_EQ(rig.find(Text(tokens(300, 1))).usable, 128);
  EXPECT_EQ(rig.host->outs().size(), 8u);
  rig.expect_books();
}

TEST(HostTier, MovesNoMoreThanAStepCan) {
  Rig rig(32, -1, 64, 11);
  rig.compute(Text(tokens(256, 1)));
  rig.cache.make_room(32);
  EXPECT_EQ(rig.host->outs().size(), 8u);
  EXPECT_EQ(rig.find(Text(tokens(300, 1))).usable, 0) << "what lies before them was forgotten, and they with it";
  rig.expect_books();
}

// Two are admitted whose states are on the host, and the only slot has a third one on the way of the second. That one
// finds no room on the host, because what the step reads stays.
TEST(HostTier, WhatAStepReadsStays) {
  Rig rig(64, 1, 2 * Rig::kStatePages);
  const Text a(tokens(200, 1)), b(tokens(300, 2));
  rig.compute(a, {128});
  rig.compute(b, {256});
  const StateSlot slot = rig.cache.allocate_state();
  rig.cache.publish_state(b.prompt(), 128, slot);
  rig.cache.end_step();
  ASSERT_EQ(rig.host->free_count(), 0);
  const PrefixCache::Match first = rig.find(a), second = rig.find(b);
  ASSERT_EQ(first.moves, Rig::kStatePages);
  ASSERT_EQ(second.moves, Rig::kStatePages);
  BlockTable one, two;
  rig.cache.take(first, {&one, 1});
  rig.cache.take(second, {&two, 1});
  EXPECT_EQ(rig.cache.load(first, one, StateSlot{3}), slot);
  EXPECT_FALSE(rig.cache.load(second, two, StateSlot{4}).valid());
  EXPECT_TRUE(rig.host->outs().empty());
  std::set<int32_t> pages;
  for (const HostMove& m : rig.host->ins()) pages.insert(m.page);
  EXPECT_EQ(pages.size(), static_cast<size_t>(2 * Rig::kStatePages));
  rig.cache.end_step();
  rig.expect_books();
  EXPECT_FALSE(rig.cache.has_state(b.prompt(), 128));
}

// The last chunk of a prefix may be on the device while those before it are on the host alone. Once the prefix is taken
// it makes no room for them.
TEST(HostTier, WhatIsTakenMakesNoRoomForItself) {
  Rig rig(32, -1, 32);
  const Text t(tokens(200));
  rig.compute(Text(tokens(130)));
  BlockTable other;  // computed beside it; its third chunk is the one that is found
  ASSERT_TRUE(other.reserve(rig.blocks, 0, 200));
  rig.cache.publish(t.prompt(), 192, {&other, 1});
  rig.cache.make_room(32);
  rig.cache.end_step();
  other.clear(rig.blocks);
  const PrefixCache::Match m = rig.find(t);
  ASSERT_EQ(m.usable, 192);
  ASSERT_EQ(m.moves, 8);
  BlockTable table;
  rig.cache.take(m, {&table, 1});
  rig.cache.make_room(32);
  EXPECT_EQ(rig.blocks.free_count(), 28);
  EXPECT_EQ(rig.cache.blocks_to_load(m), 8);
  rig.cache.load(m, table, {});
  EXPECT_EQ(table.capacity(), 192);
  rig.cache.end_step();
  rig.expect_books();
}

// A chunk that is on the host and is computed again for another reason is on the device again.
TEST(HostTier, WhatIsComputedAgainNeedNotComeBack) {
  Rig rig(32, -1, 32);
  rig.compute(Text(tokens(200)));
  rig.cache.make_room(32);
  rig.cache.end_step();
  EXPECT_EQ(rig.find(Text(tokens(200))).moves, 12);
  rig.compute(Text(tokens(192)));  // whose last token has to run, with its chunk
  EXPECT_EQ(rig.find(Text(tokens(200))).usable, 192);
  EXPECT_EQ(rig.find(Text(tokens(200))).moves, 0);
  rig.expect_books();
}

// The memories that a step moves things between: what lies where, as texts.
struct Memories {
  std::map<int32_t, std::vector<TokenId>> blocks,
      states;  // a block's tokens; the prefix that a state stands for
  struct Page {
    std::vector<TokenId> content;
    int32_t piece = -1;
  };
  std::map<int32_t, Page> pages;

  void move(const HostTier& host) {
    for (const HostMove& m : host.outs()) pages[m.page] = {m.piece < 0 ? blocks[m.device] : states[m.device], m.piece};
    std::map<int32_t, int32_t> pieces;
    for (const HostMove& m : host.ins()) {
      const Page& p = pages.at(m.page);
      ASSERT_EQ(p.piece, m.piece);
      if (m.piece < 0) {
        blocks[m.device] = p.content;
        continue;
      }
      ASSERT_EQ(pieces[m.device]++ % Rig::kStatePages, m.piece);
      ASSERT_TRUE(m.piece == 0 || states[m.device] == p.content) << "pieces of different states";
      states[m.device] = p.content;
    }
  }
  void expect_prefix(const Text& t, int64_t end, const BlockTable& table) {
    for (int64_t i = 0; i < end; ++i)
      ASSERT_EQ(blocks[table.blocks()[static_cast<size_t>(i / 16)]].at(static_cast<size_t>(i % 16)),
                t.tokens[static_cast<size_t>(i)]);
  }
};

// An engine that admits a few prompts a step. Its moves are carried out before anything is written.
class Random {
 public:
  Random(int32_t states, int32_t pages) : states_(states), rig_(140, states, pages, 200), own_(rig_.slots.allocate()) {}

  void step() {
    std::vector<Running> admitted = admit();
    for (Running& r : admitted) load(r);
    for (Running& r : admitted) reserve(r);
    memories_.move(*rig_.host);
    rig_.cache.end_step();
    const auto owners = std::count_if(admitted.begin(), admitted.end(), [&](auto& r) { return r.state == own_; });
    for (Running& r : admitted) {
      memories_.expect_prefix(r.text, r.match.usable, r.table);
      // The only slot outside of the cache has the state of the last one that wanted it.
      if (r.state.valid() && (r.state != own_ || owners == 1)) {
        ASSERT_EQ(memories_.states[r.state.v], r.text.first(r.match.usable));
      }
    }
    for (Running& r : admitted) compute(std::move(r));
    while (running_.size() > 4 || (!running_.empty() && pick(3) == 0))
      running_.erase(running_.begin() + pick(std::ssize(running_)));
    ASSERT_EQ(rig_.slots.used_count(), rig_.cache.states_held() + 1);
  }
  void check() {
    for (const Status& s : {rig_.blocks.check(), rig_.slots.check(), rig_.cache.check()}) {
      ASSERT_TRUE(s.ok()) << s.error().message;
    }
  }
  PrefixCache::Stats stats() const { return rig_.cache.stats(); }

 private:
  struct Running {
    Text text;
    PrefixCache::Match match;
    BlockTable table;
    StateSlot state, saved;
    int64_t saved_at = 0;
    int64_t end() const { return std::ssize(text.tokens); }
  };
  int64_t pick(int64_t n) { return static_cast<int64_t>(rng_() % static_cast<uint64_t>(n)); }

  // As many as there is room for; all of them take what is on the device before anything makes room.
  std::vector<Running> admit() {
    std::vector<Running> admitted;
    int64_t room = rig_.blocks.available(), moves = rig_.host->ins_left();
    for (int64_t n = 1 + pick(3); n > 0; --n) {
      Running r{Text(tokens(1 + pick(400), static_cast<TokenId>(pick(5)), 64 * pick(5) + pick(3))), {}, {}, {}, {}};
      r.match = rig_.find(r.text);
      room -= r.match.unused + (r.end() + 15) / 16 - r.match.usable / 16;
      moves -= r.match.moves;
      if (room < 0 || moves < 0) break;
      admitted.push_back(std::move(r));
    }
    for (Running& r : admitted)
      if (r.match.usable > 0) r.state = rig_.cache.take(r.match, {&r.table, 1});
    return admitted;
  }
  void make_room(int32_t wanted) {
    if (wanted > rig_.blocks.free_count()) rig_.cache.make_room(wanted);
    ASSERT_GE(rig_.blocks.free_count(), wanted);
  }
  void load(Running& r) {
    if (r.match.moves == 0) return;
    make_room(rig_.cache.blocks_to_load(r.match));
    const StateSlot s = rig_.cache.load(r.match, r.table, own_);
    if (states_ > 0 && !r.state.valid()) r.state = s.valid() ? s : own_;
  }
  void reserve(Running& r) {
    make_room(r.table.blocks_needed(r.end()));
    ASSERT_TRUE(r.table.reserve(rig_.blocks, r.match.usable, r.end()));
    r.saved_at = r.end() > 64 ? 64 * (1 + pick(longest_prefix(r.end()) / 64)) : 0;
    if (states_ > 0 && r.saved_at > 0 && !rig_.cache.has_state(r.text.prompt(), r.saved_at))
      r.saved = rig_.cache.allocate_state();
  }
  void compute(Running r) {
    for (int64_t i = r.match.usable; i < r.end(); ++i) {
      auto& block = memories_.blocks[r.table.blocks()[static_cast<size_t>(i / 16)]];
      if (i % 16 == 0) block.clear();
      block.push_back(r.text.tokens[static_cast<size_t>(i)]);
    }
    rig_.cache.publish(r.text.prompt(), r.end(), {&r.table, 1});
    if (r.saved.valid()) {
      memories_.states[r.saved.v] = r.text.first(r.saved_at);
      rig_.cache.publish_state(r.text.prompt(), r.saved_at, r.saved);
    }
    running_.push_back(std::move(r));
  }

  std::mt19937_64 rng_{20261123};
  int32_t states_;
  Rig rig_;
  StateSlot own_;
  Memories memories_;
  std::deque<Running> running_;
};

TEST(HostTier, RandomUseKeepsTheBooksAndTheContent) {
  for (const int32_t states : {-1, 5}) {
    for (const int32_t pages : {40, 300}) {
      SCOPED_TRACE(testing::Message() << states << " states, " << pages << " pages");
      Random engine(states, pages);
      for (int step = 0; step < 3000; ++step) {
        engine.step();
        if (step % 20 == 0) engine.check();
        if (HasFatalFailure()) return;
      }
      const PrefixCache::Stats s = engine.stats();
      EXPECT_GT(s.chunks_stored, 100);
      EXPECT_GT(s.chunks_loaded + s.states_loaded, 100);
      EXPECT_GT(s.evictions, 100);
      EXPECT_EQ(s.states_stored > 100, states > 0);
      EXPECT_EQ(s.states_loaded > 20, states > 0);
      EXPECT_EQ(s.state_evictions > 100, states > 0);
    }
  }
}

}  // namespace
}  // namespace quire
