// What kinds of memory the caches of a model are made of: a list that the model's cache shape declares
// (CacheShape::pools), and that plans of memory, the prefix cache, its files, metrics and messages go through.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace quire {

// One kind. Pools differ in when a unit comes and goes, and not in what lies in it: what layers keep for as long as
// each other is one pool, whichever layers these are.
struct CachePoolSpec {
  enum class Unit : uint8_t {
    kBlock,     // of kBlockTokens tokens: sequences collect and share them (BlockPool)
    kSequence,  // of a whole sequence, which alone has it (StatePool)
  };
  std::string name;  // as metrics, traces and messages call it: "kv", "window", "state"
  Unit unit = Unit::kBlock;
  int64_t bytes = 0;  // of a unit
  // Of blocks: the tokens that a token looks back on, its own among them, where a sequence gives back what lies before
  // those. Such blocks stay on the device; units of all other pools may leave for pages of the host where it lacks
  // room, and come back. 0: a sequence keeps its blocks to its end.
  int64_t window = 0;

  bool is_window() const { return window > 0; }
  bool operator==(const CachePoolSpec&) const = default;
};

// First the blocks that sequences keep to their end, which are always there (they may have no bytes); then blocks of
// windows, shorter ones first; then at most one pool of units of whole sequences.
using CachePools = std::vector<CachePoolSpec>;
// How many units each of the pools has.
using PoolCounts = std::vector<int32_t>;

inline constexpr int kKvPool = 0;
inline constexpr int kMostPools = 8;
// Stands for the pages of the host where a pool is named. A page is as large as a block of kKvPool.
inline constexpr int kHostPages = -1;

// What stands for blocks that a table of windows holds no more: kernels walk keys in groups cut at absolute positions,
// so they may read a few that lie before a window, and give them no weight. A pool of windows has one block more than
// are counted, the last one, which nobody owns and nobody writes: what is multiplied by nothing is a number.
constexpr int32_t window_filler(int32_t blocks) {
  return blocks;
}

// Of a list as above: how many of its pools are of blocks; and the one of whole sequences, -1: there is none.
inline int block_pools(const CachePools& pools) {
  const bool last = !pools.empty() && pools.back().unit == CachePoolSpec::Unit::kSequence;
  return static_cast<int>(pools.size()) - last;
}
inline int state_pool(const CachePools& pools) {
  const int blocks = block_pools(pools);
  return blocks < static_cast<int>(pools.size()) ? blocks : -1;
}
inline int64_t state_bytes(const CachePools& pools) {
  const int pool = state_pool(pools);
  return pool < 0 ? 0 : pools[static_cast<size_t>(pool)].bytes;
}
// Of counts that go with them.
inline int32_t state_count(const CachePools& pools, const PoolCounts& counts) {
  const int pool = state_pool(pools);
  return pool < 0 ? 0 : counts[static_cast<size_t>(pool)];
}

}  // namespace quire
