#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "cache/block_pool.h"
#include "cache/block_table.h"
#include "cache/storage.h"
#include "core/memory.h"
#include "support/cache_bytes.h"

namespace quire {
namespace {

using test::unit_bytes;

TEST(BlockPool, HandsOutEveryBlockOnceThenNothing) {
  BlockPool pool(5);
  std::set<int32_t> got;
  for (int i = 0; i < 5; ++i) got.insert(pool.allocate().v);
  EXPECT_EQ(got, (std::set<int32_t>{0, 1, 2, 3, 4}));
  EXPECT_FALSE(pool.allocate().valid());
  EXPECT_TRUE(pool.check().ok());
}

TEST(BlockPool, FreeBlocksKeepTheirContentUntilReused) {
  BlockPool pool(2);
  const BlockId a = pool.allocate();
  const uint32_t generation = pool.generation(a);
  pool.release(a);
  EXPECT_TRUE(pool.revive(a, generation)) << "nothing has overwritten it";
  pool.release(a);
  pool.allocate();
  pool.allocate();  // one of the two is `a`
  EXPECT_FALSE(pool.revive(a, generation));
}

TEST(BlockPool, FreeGoesBeforeCachedAndOldestFirst) {
  BlockPool pool(4);
  BlockId b[4];
  for (BlockId& x : b) x = pool.allocate();
  pool.set_cached(b[0], true);
  for (int i : {0, 3, 1, 2}) pool.release(b[i]);
  EXPECT_EQ(pool.cached_count(), 1);
  EXPECT_EQ(pool.free_count(), 3);
  EXPECT_EQ(pool.allocate(), b[3]);
  EXPECT_EQ(pool.allocate(), b[1]);
  EXPECT_EQ(pool.allocate(), b[2]);
  EXPECT_EQ(pool.allocate(), b[0]) << "the cached block is taken last";
  EXPECT_TRUE(pool.check().ok());
}

TEST(BlockPoolDeathTest, MisuseIsCaught) {
  BlockPool pool(2);
  const BlockId a = pool.allocate();
  pool.release(a);
  EXPECT_DEATH(pool.release(a), "is not in use");
  EXPECT_DEATH(pool.retain(a), "is not in use");
  EXPECT_DEATH(pool.release(BlockId{7}), "block 7 of 2");
}

TEST(StatePool, SlotsHaveOneOwner) {
  StatePool pool(2);
  const StateSlot a = pool.allocate(), b = pool.allocate();
  EXPECT_NE(a, b);
  EXPECT_FALSE(pool.allocate().valid());
  pool.release(a);
  EXPECT_EQ(pool.allocate(), a);
  EXPECT_TRUE(pool.check().ok());
  pool.release(b);
  EXPECT_DEATH(pool.release(b), "is not in use");
}

TEST(BlockTable, WritesNoBlockThatAnotherTableHas) {
  BlockPool pool(8);
  BlockTable a, b;
  ASSERT_TRUE(a.reserve(pool, 0, 40));  // 3 blocks
  for (const int32_t block : a.blocks().first(2))
    b.append_shared(pool, BlockId{block}, pool.generation(BlockId{block}));
  EXPECT_EQ(pool.used_count(), 3);
  EXPECT_EQ(b.blocks_needed(41), 1);
  ASSERT_TRUE(b.reserve(pool, 32, 41));  // behind what is shared
  EXPECT_EQ(a.blocks()[1], b.blocks()[1]);
  EXPECT_NE(a.blocks()[2], b.blocks()[2]);
  EXPECT_DEATH(a.reserve(pool, 31, 41), "is written while 2 tables have it");
  ASSERT_TRUE(a.reserve(pool, 40, 49));
  EXPECT_EQ(pool.used_count(), 5);
  a.clear(pool);
  b.clear(pool);
  EXPECT_EQ(pool.available(), 8);
}

TEST(BlockTable, FailsWithoutChangeWhenThePoolIsShort) {
  BlockPool pool(2);
  BlockTable a;
  EXPECT_FALSE(a.reserve(pool, 0, 33));
  EXPECT_EQ(pool.available(), 2);
  EXPECT_EQ(a.capacity(), 0);
}

// 10^5 random operations on many tables, against a model that knows what each position's block must contain.
TEST(BlockTable, RandomOperationsKeepTheBooksAndTheContent) {
  constexpr uint64_t kSeed = 20260801;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  std::mt19937_64 rng(kSeed);
  const auto pick = [&](int n) { return static_cast<int>(rng() % static_cast<uint64_t>(n)); };
  struct Seq {
    BlockTable table;
    std::vector<int> tokens;  // what was written at each position
    size_t shared = 0;        // of them, those in blocks that others may have
  };
  BlockPool pool(120);
  std::vector<std::vector<int>> memory(120, std::vector<int>(kBlockTokens, -1));
  std::vector<Seq> seqs(24);
  std::map<int32_t, std::pair<uint32_t, std::vector<int>>> remembered;  // freed blocks and their content
  int writes = 0, refused = 0, shares = 0, revived = 0;
  for (int step = 0; step < 100000; ++step) {
    Seq& s = seqs[static_cast<size_t>(pick(24))];
    switch (std::max(0, pick(16) - 11)) {  // mostly appends: the pool must run out
      case 0:
      case 1: {  // append, as a step of decode or a chunk of prefill
        const int64_t begin = static_cast<int64_t>(s.tokens.size()), end = begin + 1 + pick(pick(4) == 0 ? 64 : 2);
        if (!s.table.reserve(pool, begin, end)) {
          ++refused;
          break;
        }
        for (int64_t p = begin; p < end; ++p) {
          s.tokens.push_back(step);
          memory[static_cast<size_t>(s.table.blocks()[static_cast<size_t>(p / 16)])][static_cast<size_t>(p % 16)] =
              step;
        }
        ++writes;
        break;
      }
      case 2: {  // finish; half of the time remember a block's content
        if (s.table.capacity() > 0 && pick(2) == 0 && pool.references(BlockId{s.table.blocks()[0]}) == 1) {
          const BlockId b{s.table.blocks()[0]};
          remembered[b.v] = {pool.generation(b), memory[static_cast<size_t>(b.v)]};
          pool.set_cached(b, pick(2) == 0);
        }
        s.table.clear(pool);
        s.tokens.clear();
        s.shared = 0;
        break;
      }
      case 3: {  // begin with another sequence's whole blocks
        Seq& from = seqs[static_cast<size_t>(pick(24))];
        if (&from == &s) break;
        s.table.clear(pool);
        const size_t whole = from.tokens.size() / kBlockTokens;
        for (const int32_t b : from.table.blocks().first(whole))
          s.table.append_shared(pool, BlockId{b}, pool.generation(BlockId{b}));
        s.shared = from.shared = whole * kBlockTokens;
        s.tokens.assign(from.tokens.begin(), from.tokens.begin() + static_cast<std::ptrdiff_t>(s.shared));
        ++shares;
        break;
      }
      default: {  // roll back some positions
        const int64_t keep = static_cast<int64_t>(s.tokens.size()) - pick(20);
        if (keep < static_cast<int64_t>(s.shared)) break;
        s.table.truncate(pool, keep);
        s.tokens.resize(static_cast<size_t>(keep));
      }
    }
    if (step % 97 == 0) {
      ASSERT_TRUE(pool.check().ok()) << pool.check().error().message << " at step " << step;
      for (const Seq& q : seqs)
        for (size_t p = 0; p < q.tokens.size(); ++p)
          ASSERT_EQ(memory[static_cast<size_t>(q.table.blocks()[p / 16])][p % 16], q.tokens[p]) << "step " << step;
      if (!remembered.empty()) {
        auto it = remembered.begin();
        const BlockId b{it->first};
        if (pool.references(b) == 0 && pool.revive(b, it->second.first)) {
          ASSERT_EQ(memory[static_cast<size_t>(b.v)], it->second.second) << "step " << step;
          pool.release(b);
          ++revived;
        }
        remembered.erase(it);
      }
    }
  }
  for (Seq& q : seqs) q.table.clear(pool);
  ASSERT_TRUE(pool.check().ok());
  EXPECT_EQ(pool.available(), 120);
  EXPECT_GT(writes, 10000);
  EXPECT_GT(refused, 100) << "the pool never ran out: the test is too easy";
  EXPECT_GT(shares, 1000);
  EXPECT_GT(revived, 5);
}

TEST(CacheStorage, ReservesWithoutTouching) {
  CacheShape s{.attention = {{.layers = 2, .kv_heads = 2, .head_dim = 64}},
               .delta = {.layers = 3,
                         .conv_taps = 3,
                         .conv_channels = 256,
                         .value_heads = 4,
                         .value_dim = 32,
                         .key_heads = 2,
                         .key_dim = 32},
               .kv_dtype = DType::kBF16};
  EXPECT_EQ(unit_bytes(s, "kv"), 2 * 2 * 2 * 16 * 64 * 2);
  EXPECT_EQ(unit_bytes(s, "state"), 3 * (4 * (4 * 32 * 32 + 16 * (4 * 32 + 4)) + 2 * (16 * 2 * 32 + 4 * 256)));
  auto c = CacheStorage::create(s, {100000, 10});
  ASSERT_TRUE(c.ok());
  EXPECT_GE(static_cast<int64_t>(c->memory().size()), 100000 * unit_bytes(s, "kv"));
  EXPECT_EQ(resident_memory(c->memory()), 0);
  c->kv(1).v.row<bf16>(99999)[0] = to_bf16(1.0f);
  EXPECT_GT(resident_memory(c->memory()), 0);
  EXPECT_EQ(c->state(2).state.dim(0), 10);
  // A block, and a slot, is one piece for all layers.
  EXPECT_EQ(c->units(kKvPool).dim(0), 100000);
  EXPECT_EQ(c->units(kKvPool).dim(1) * 4, unit_bytes(s, "kv"));
  EXPECT_EQ(static_cast<std::byte*>(c->kv(1).v.data) - static_cast<std::byte*>(c->kv(0).k.data),
            3 * unit_bytes(s, "kv") / 4);
  EXPECT_EQ(c->kv(0).k.stride[0] * 2, unit_bytes(s, "kv"));
  EXPECT_EQ(c->states().dim(1) * 4, unit_bytes(s, "state"));
  EXPECT_EQ(c->state(1).conv.stride[0] * 2, unit_bytes(s, "state"));
}

TEST(CacheStorage, LayersMayHaveHeadsOfTheirOwn) {
  CacheShape s;
  s.add_attention(2, 4, 32);
  s.add_attention(0, 1, 1);
  s.add_attention(1, 1, 128);
  s.add_attention(1, 4, 32);
  s.add_attention(1, 4, 32);
  ASSERT_EQ(s.attention.size(), 3u) << "equal neighbours are one run";
  EXPECT_EQ(s.attention_layers(), 5);
  EXPECT_EQ(unit_bytes(s, "kv"), 2 * 2 * 16 * (4 * 4 * 32 + 128));
  const auto c = CacheStorage::create(s, {10});
  ASSERT_TRUE(c.ok());
  const int64_t dims[] = {4 * 32, 4 * 32, 128, 4 * 32, 4 * 32};
  const auto* at = static_cast<const std::byte*>(c->kv(0).k.data);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(c->kv(i).k.dim(1), i == 2 ? 1 : 4) << i;
    EXPECT_EQ(c->kv(i).v.stride[0] * 2, unit_bytes(s, "kv")) << i;
    EXPECT_EQ(static_cast<const std::byte*>(c->kv(i).k.data), at) << i;
    EXPECT_EQ(static_cast<const std::byte*>(c->kv(i).v.data), at + 2 * 16 * dims[i]) << i;
    at += 2 * 2 * 16 * dims[i];
  }
}

// Layers that attend to a window in pools of their own, one for each length, behind the others'.
TEST(CacheStorage, WindowsMayLieApart) {
  CacheShape s;
  s.add_attention(1, 4, 32, 100);
  s.add_attention(1, 4, 32);
  s.add_attention(2, 2, 64, 100);
  ASSERT_EQ(s.attention.size(), 3u);
  EXPECT_EQ(unit_bytes(s, "kv"), 2 * 2 * 16 * 4 * 32);
  EXPECT_EQ(unit_bytes(s, "window"), 3 * 2 * 2 * 16 * 4 * 32);
  const auto c = CacheStorage::create(s, {10, 2});
  ASSERT_TRUE(c.ok());
  EXPECT_EQ(c->units(kKvPool).dim(0), 10);
  EXPECT_EQ(c->units(1).dim(0), 3) << "and the one that stands for what is gone";
  EXPECT_EQ(window_filler(2), 2);
  EXPECT_EQ(c->kv(1).k.data, c->units(kKvPool).data);
  EXPECT_EQ(c->kv(0).k.data, c->units(1).data);
  EXPECT_EQ(c->units(1).bytes_at(0), c->units(kKvPool).bytes_at(0) + 10 * unit_bytes(s, "kv"));
  for (const int layer : {0, 2, 3}) {
    EXPECT_EQ(c->kv(layer).k.dim(0), 3) << layer;
    EXPECT_EQ(c->kv_pool(layer), 1) << layer;
  }
  EXPECT_EQ(c->kv_pool(1), kKvPool);
  EXPECT_EQ(c->kv(2).k.stride[0] * 2, unit_bytes(s, "window"));
  EXPECT_EQ(c->kv(1).k.stride[0] * 2, unit_bytes(s, "kv"));
}

// All kinds at once, in the order of the list.
TEST(CacheStorage, DeclaresItsPools) {
  CacheShape s;
  EXPECT_EQ(s.pools(), (CachePools{{.name = "kv"}})) << "always there";
  s.add_attention(1, 4, 32, 1000);
  s.add_attention(3, 4, 32, 100);
  s.delta = {.layers = 2,
             .conv_taps = 3,
             .conv_channels = 64,
             .value_heads = 1,
             .value_dim = 32,
             .key_heads = 1,
             .key_dim = 32};
  const CachePools pools = s.pools().value();
  ASSERT_EQ(pools.size(), 4u);
  EXPECT_EQ(pools[0].bytes, 0);
  EXPECT_EQ(pools[1].name, "window_100");
  EXPECT_EQ(pools[1].bytes, 3 * pools[2].bytes);
  EXPECT_EQ(pools[2].name, "window_1000");
  EXPECT_EQ(pools[2].window, 1000);
  EXPECT_EQ(pools[3].name, "state");
  EXPECT_EQ(block_pools(pools), 3);
  EXPECT_EQ(state_pool(pools), 3);
  EXPECT_EQ(state_bytes(pools), pools[3].bytes);
  EXPECT_EQ(s.counts(7, 5), (PoolCounts{7, 7, 7, 5}));
  const auto c = CacheStorage::create(s, s.counts(7, 5));
  ASSERT_TRUE(c.ok());
  EXPECT_EQ(c->kv_pool(0), 2);
  EXPECT_EQ(c->kv_pool(3), 1);
  EXPECT_EQ(c->states().dim(0), 5);
  const std::byte* at = c->memory().data();
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(c->units(i).bytes_at(0), at) << i;
    at += c->units(i).dim(0) * pools[static_cast<size_t>(i)].bytes;
  }
  EXPECT_LE(at, c->memory().data() + c->memory().size());
}

TEST(CacheStorage, AnE4m3BlockIsCodesAndExponents) {
  const CacheShape s{.attention = {{.layers = 3, .kv_heads = 2, .head_dim = 64}}, .kv_dtype = DType::kF8E4M3};
  EXPECT_EQ(unit_bytes(s, "kv"), 3 * 2 * (2 * (16 * 64 + 16) + 32)) << "each of keys and values on a line of its own";
  const auto c = CacheStorage::create(s, {10});
  ASSERT_TRUE(c.ok());
  EXPECT_EQ(c->kv(0).k.dim(2), 16 * 64 + 16);
  EXPECT_EQ(c->kv(2).v.stride[0], unit_bytes(s, "kv"));
  EXPECT_EQ(c->kv(2).v.stride[1], 16 * 64 + 16);
  EXPECT_EQ(c->units(kKvPool).dim(1) * 4, unit_bytes(s, "kv"));
}

TEST(CacheStorage, RefusesSizesThatCannotBeCounted) {
  CacheShape s{.attention = {{.layers = 1 << 30, .kv_heads = 1 << 30, .head_dim = 1 << 30}}};
  EXPECT_FALSE(s.pools().has_value());
  const auto c = CacheStorage::create(s, {100000});
  ASSERT_FALSE(c.ok());
  EXPECT_EQ(c.error().fault, Fault::kCapacity);
  s = {.attention = {{.layers = 64, .kv_heads = 64, .head_dim = 1 << 20}}};  // one block can be counted, all cannot
  EXPECT_TRUE(s.pools().has_value());
  EXPECT_FALSE(CacheStorage::create(s, {1 << 30}).ok());
}

}  // namespace
}  // namespace quire
