// What the caches of a model hold: layers of several kinds, and the pools of memory that these are kept in. The list of
// pools, which the shape declares (CacheShape::pools), is what plans of memory, the prefix cache, its files, metrics
// and messages go through.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/dtype.h"

namespace quire {

// ---- Pools

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
// Stands for the pages of the host that units of a pool lie in where a pool is named. Of a block that is one page, of
// all else one for each piece as large as a block.
constexpr int on_host(int pool) {
  return -1 - pool;
}
constexpr bool is_on_host(int pool) {
  return pool < 0;
}

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

// ---- Shapes

// What keys and values are kept in, as options name it.
enum class KvCacheType {
  kAuto,  // the activations' type: bf16, or float32 on the reference
  kBf16,
  kFp8,  // E4M3, each head of a token under a scale of its own (ops/attention/scale.h)
};
constexpr DType kv_dtype(KvCacheType t, DType activations) {
  return t == KvCacheType::kFp8 ? DType::kF8E4M3 : t == KvCacheType::kBf16 ? DType::kBF16 : activations;
}

// What layers of one kind keep. Of attention: of some layers that follow each other.
struct AttentionCacheShape {
  int32_t layers = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int64_t window = 0;  // CachePoolSpec::window of the blocks that they are kept in
};
struct DeltaCacheShape {
  int32_t layers = 0;
  int32_t conv_taps = 0;      // Kc - 1 inputs kept
  int64_t conv_channels = 0;  // C
  int32_t value_heads = 0, value_dim = 0, key_heads = 0, key_dim = 0;
};

// How an engine uses the caches.
struct CacheUse {
  int32_t drafts = 0;  // tentative rows of a sequence in a step at most
  bool mtp = false;    // keys and values of the multi-token-prediction block: those of one more layer of attention
  int64_t window = 0;  // not 0: layers that attend to it have a pool of blocks of such a window (pool_window)
};

// One tensor of those that a layer keeps in each unit of a pool.
struct CachePart {
  DType dtype;
  std::vector<int64_t> dims;
};
// Layers that keep the same, one behind the other: each its parts in their order.
struct CacheLayers {
  int pool;
  int32_t count;
  std::vector<CachePart> parts;
};

// What a model's caches look like; 0 layers of a kind is legal.
struct CacheShape {
  std::vector<AttentionCacheShape> attention;  // all layers in their order: runs of those that have equal heads
  DeltaCacheShape delta;
  int32_t drafts = 0;                     // tentative rows that a sequence may have in a step
  DType kv_dtype = DType::kBF16;          // of keys and values
  DType activation_dtype = DType::kBF16;  // of what states keep of tokens

  // A GPU's kernel has all tokens since the anchor at hand, with the segment's own. The anchor lies up to 15 tokens and
  // the drafts of the step before behind the segment.
  int32_t pending_tokens() const;
  // The inputs before a segment, and those of its rows.
  int32_t ring() const;
  bool has_state() const { return delta.layers > 0; }
  int32_t attention_layers() const;
  // `layers` more of them behind the others.
  void add_attention(int32_t layers, int32_t kv_heads, int32_t head_dim, int64_t window = 0);

  // All layers: those of attention in their order, then the delta nets.
  std::vector<CacheLayers> in_pools() const;
  // The pools that these layers need. Nothing if one's units are of no number of bytes (sizes come from files).
  std::optional<CachePools> pools() const;
  // So many units of blocks in each pool of them, and so many of whole sequences where there are any.
  PoolCounts counts(int32_t blocks, int32_t sequences) const;
};

}  // namespace quire
