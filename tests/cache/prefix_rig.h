// A prefix cache with its pools, as an engine uses it, and texts to look for.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include "cache/prefix_cache.h"

namespace quire {

inline const KeyedHash kHash(11, 22);

// A prompt with its hashes, which a test may replace.
struct Text {
  std::vector<TokenId> tokens;
  PrefixHashes hashes;

  explicit Text(std::vector<TokenId> t, std::string_view salt = "") : tokens(std::move(t)) {
    hashes = hash_prefixes(kHash, salt, tokens);
  }
  PrefixCache::Prompt prompt() const { return {tokens, hashes}; }
  std::vector<TokenId> first(int64_t count) const { return {tokens.begin(), tokens.begin() + count}; }
};

// `count` tokens; `variant` tells texts apart from token `from` on.
inline std::vector<TokenId> tokens(int64_t count, TokenId variant = 0, int64_t from = 0) {
  std::vector<TokenId> t(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i)
    t[static_cast<size_t>(i)] = static_cast<TokenId>(i % 97 + (i >= from ? 1000 * variant : 0));
  return t;
}

// A cache and its pools, and what an engine does with them.
struct Rig {
  static constexpr int32_t kStatePages = 3, kFirstPage = 100;
  BlockPool blocks;
  StatePool slots;
  std::optional<HostTier> host;
  PrefixCache cache;

  explicit Rig(int32_t total = 64, int32_t states = -1, int32_t pages = 0, int32_t moves = 1000)
      : blocks(total), slots(std::max(0, states) + 4), cache(blocks, slots, states, make_host(pages, moves)) {}
  HostTier* make_host(int32_t pages, int32_t moves) {
    if (pages == 0) return nullptr;
    host.emplace(HostTier::Options{kFirstPage, pages, kStatePages, moves});
    return &*host;
  }

  PrefixCache::Match find(const Text& t) {
    PrefixCache::Match m;
    cache.find(t.prompt(), m);
    return m;
  }
  PrefixMiss why(const Text& t) { return cache.explain(t.prompt(), find(t)).reason; }
  // A sequence that finds what it can and computes the rest of its prompt.
  BlockTable compute(const Text& t, std::vector<int64_t> saved = {}) {
    BlockTable table;
    const PrefixCache::Match m = find(t);
    if (m.usable > 0) cache.take(m, {&table, 1});
    if (m.moves > 0) {
      if (const int32_t needed = cache.blocks_to_load(m); needed > blocks.free_count()) cache.make_room(needed);
      cache.load(m, table, StateSlot{0});
    }
    const auto end = static_cast<int64_t>(t.tokens.size());
    const int32_t needed = table.blocks_needed(end);
    if (needed > blocks.free_count()) cache.make_room(needed);
    EXPECT_TRUE(table.reserve(blocks, m.usable, end));
    cache.publish(t.prompt(), end, {&table, 1});
    for (const int64_t at : saved)
      if (const StateSlot s = cache.allocate_state(); s.valid()) cache.publish_state(t.prompt(), at, s);
    cache.end_step();
    expect_books();
    return table;
  }
  void expect_books() {
    for (const Status& s : {blocks.check(), slots.check(), cache.check()})
      EXPECT_TRUE(s.ok()) << (s.ok() ? "" : s.error().message);
    EXPECT_EQ(slots.used_count(), cache.states_held());
  }
};

}  // namespace quire
