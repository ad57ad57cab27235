// What a prefix cache tells others: all that a prompt can go on from, and nothing else, in an order that readers take.
#include <gtest/gtest.h>

#include <deque>
#include <random>

#include "cache/kv_event_reader.h"
#include "cache/prefix_rig.h"

namespace quire {
namespace {

struct Told : Rig {
  std::shared_ptr<KvEventReader> reader = std::make_shared<KvEventReader>();
  explicit Told(int32_t total = 64, int32_t states = -1, int32_t pages = 0) : Rig(total, states, pages) {
    cache.tell(reader, open_salts(kHash));
    sent();
  }
  void sent() {
    cache.send_events();
    expect_books();
  }
};

TEST(KvEvents, TellOfEveryChunkThatWasComputed) {
  Told t;
  EXPECT_EQ(t.reader->cleared, 1) << "what an earlier server told is void";
  t.compute(Text(tokens(200)));
  t.sent();
  EXPECT_EQ(t.reader->known(tokens(300)), 192);
  EXPECT_EQ(t.reader->blocks.size(), 3u);
  t.compute(Text(tokens(200, 1, 70)));  // another way from the second chunk on
  t.sent();
  EXPECT_EQ(t.reader->blocks.size(), 5u);
  EXPECT_EQ(t.reader->known(tokens(300, 1, 70)), 192);
  const int batches = t.reader->batches;
  t.compute(Text(tokens(200)));
  t.sent();
  EXPECT_EQ(t.reader->batches, batches) << "nothing is new";
}

TEST(KvEvents, OfARecurrentModelTellOfWhatAStateIsBehind) {
  Told t(64, 2);
  const Text text(tokens(400));
  t.compute(text);
  t.sent();
  EXPECT_TRUE(t.reader->blocks.empty()) << "blocks alone are of no use";
  t.compute(text, {256});
  t.sent();
  EXPECT_EQ(t.reader->known(text.tokens), 256);
  EXPECT_EQ(t.find(text).usable, 256);
  t.compute(text, {128, 320});  // one of three states goes: the least recently used
  t.sent();
  EXPECT_EQ(t.reader->known(text.tokens), t.find(text).usable);
  EXPECT_EQ(t.reader->paths(), useful_paths(t.cache));
}

TEST(KvEvents, WhatMakesRoomIsRemoved) {
  Told t(24, 3);
  for (TokenId i = 0; i < 8; ++i) {
    const Text text(tokens(200, i, 0));
    t.compute(text, {192});
    t.sent();
    EXPECT_EQ(t.reader->paths(), useful_paths(t.cache)) << i;
    EXPECT_EQ(t.reader->known(text.tokens), 192);
  }
  EXPECT_LE(t.reader->blocks.size(), 6u);
  t.cache.clear();
  t.sent();
  EXPECT_TRUE(t.reader->blocks.empty());
}

TEST(KvEvents, BeginWithWhatIsThere) {
  Rig rig(64, 4);
  rig.compute(Text(tokens(200)), {64, 192});
  rig.compute(Text(tokens(300, 1, 100)), {256});
  const auto reader = std::make_shared<KvEventReader>();
  rig.cache.tell(reader, open_salts(kHash));
  rig.cache.send_events();
  EXPECT_EQ(reader->paths(), useful_paths(rig.cache));
  EXPECT_EQ(reader->known(tokens(400, 1, 100)), 256);
  rig.expect_books();
}

TEST(KvEvents, WithTokensNeitherSaltsNorPicturesAreTold) {
  Told t;
  t.compute(Text(tokens(200), "secret"));
  Text picture(tokens(200, 1, 0));
  picture.hashes = hash_prefixes(kHash, kHash({}), picture.tokens, {{}, {1, 2}, {}});
  t.compute(picture);
  t.sent();
  EXPECT_EQ(t.reader->blocks.size(), 1u) << "what comes before a picture";
  EXPECT_EQ(t.reader->known(picture.tokens), 64);
  // By hashes alone all of it is.
  const auto reader = std::make_shared<KvEventReader>();
  t.cache.tell(reader, std::nullopt);
  t.sent();
  EXPECT_EQ(reader->blocks.size(), 6u);
  for (const auto& [hash, block] : reader->blocks) EXPECT_TRUE(block.tokens.empty());
}

TEST(KvEvents, AreToldAnewWhereSomeWereNotTaken) {
  Told t;
  t.compute(Text(tokens(100)));
  t.sent();
  t.reader->full = t.reader->busy = true;
  t.compute(Text(tokens(100, 1, 0)));
  t.sent();
  t.reader->full = false;
  t.compute(Text(tokens(100, 2, 0)));
  t.sent();
  EXPECT_EQ(t.reader->blocks.size(), 1u) << "nothing while others wait";
  t.reader->busy = false;
  t.sent();
  EXPECT_EQ(t.reader->cleared, 2);
  EXPECT_EQ(t.reader->paths(), useful_paths(t.cache));
  EXPECT_EQ(t.reader->blocks.size(), 3u);
}

// Prompts come and go with and without states and a host, and after each the reader knows what is there.
TEST(KvEvents, RandomUseIsReadAsItIs) {
  for (const auto& [states, pages] : {std::pair(-1, 0), std::pair(6, 0), std::pair(-1, 64), std::pair(6, 64)}) {
    std::mt19937_64 rng(5);
    const auto pick = [&](int64_t n) { return static_cast<int64_t>(rng() % static_cast<uint64_t>(n)); };
    Told t(96, states, pages);
    std::deque<BlockTable> running;
    size_t most = 0;
    for (int step = 0; step < 1500; ++step) {
      const Text text(tokens(1 + pick(400), static_cast<TokenId>(pick(4)), 64 * pick(5) + pick(3)));
      const auto end = static_cast<int64_t>(text.tokens.size());
      while (!running.empty() && t.blocks.available() < 32) {
        running.front().clear(t.blocks);
        running.pop_front();
      }
      std::vector<int64_t> saved;
      if (states > 0 && end >= 64) saved.push_back(64 * (1 + pick(end / 64)));
      running.push_back(t.compute(text, saved));
      t.reader->full = pick(20) == 0;
      t.sent();
      if (t.reader->full) continue;
      t.sent();
      ASSERT_EQ(t.reader->paths(), useful_paths(t.cache)) << step;
      most = std::max(most, t.reader->blocks.size());
    }
    for (BlockTable& table : running) table.clear(t.blocks);
    EXPECT_GT(most, states > 0 ? 8u : 15u);
    EXPECT_GT(t.cache.stats().evictions, 100);
  }
}

}  // namespace
}  // namespace quire
