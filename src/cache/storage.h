// The memory of the caches: pools of units (pool_spec.h), one pool behind the other. All layers of a unit lie together,
// so that copying or swapping one is one contiguous copy:
//   block  [attention layer of the pool][k | v][kv_heads][kv_head_elems]   heads may differ from layer to layer
//   state  [delta layer][state | pending_u | pending_g | pending_k | conv]
// Layers see strided views.
#pragma once

#include <bit>
#include <optional>
#include <span>
#include <vector>

#include "cache/pool_spec.h"
#include "ops/attention/attention.h"
#include "ops/gated_delta/gated_delta.h"

namespace quire {

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

// What a model's caches look like; 0 layers of a kind is legal.
struct CacheShape {
  std::vector<AttentionCacheShape> attention;  // all layers in their order: runs of those that have equal heads
  DeltaCacheShape delta;
  int32_t drafts = 0;                     // tentative rows that a sequence may have in a step
  DType kv_dtype = DType::kBF16;          // of keys and values
  DType activation_dtype = DType::kBF16;  // of what states keep of tokens

  // A GPU's kernel has all tokens since the anchor at hand, with the segment's own. The anchor lies up to 15 tokens and
  // the drafts of the step before behind the segment.
  int32_t pending_tokens() const { return kPendingTokens + 2 * drafts; }
  // The inputs before a segment, and those of its rows.
  int32_t ring() const {
    return static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(delta.conv_taps + 1 + drafts)));
  }
  bool has_state() const { return delta.layers > 0; }
  int32_t attention_layers() const;
  // `layers` more of them behind the others.
  void add_attention(int32_t layers, int32_t kv_heads, int32_t head_dim, int64_t window = 0);

  // The pools that these layers need. Nothing if one's units are of no number of bytes (sizes come from files).
  std::optional<CachePools> pools() const;
  // So many units of blocks in each pool of them, and so many of whole sequences where there are any.
  PoolCounts counts(int32_t blocks, int32_t sequences) const;
};

// Where the caches lie in some memory.
class CacheViews {
 public:
  CacheViews() = default;
  // base: bytes() of them, aligned to 64.
  CacheViews(const CacheShape& shape, std::byte* base, const PoolCounts& counts);
  // Nothing if that is no number of bytes.
  static std::optional<int64_t> bytes(const CacheShape& shape, const PoolCounts& counts);

  const CacheShape& shape() const { return shape_; }
  const CachePools& pools() const { return pools_; }
  // A pool as [units, elements], a row for all layers of a unit; the filler of windows is the last one.
  const Tensor& units(int pool) const { return units_[static_cast<size_t>(pool)]; }
  // The same of states; without rows if there are none.
  Tensor states() const {
    const int pool = state_pool(pools_);
    return pool < 0 ? make_tensor(nullptr, DType::kF32, {0, 0}) : units(pool);
  }

  const KvLayer& kv(int attention_layer) const { return kv_[static_cast<size_t>(attention_layer)]; }
  // The pool whose blocks a layer's keys and values are in.
  int kv_pool(int attention_layer) const { return kv_pools_[static_cast<size_t>(attention_layer)]; }
  const DeltaState& state(int delta_layer) const { return states_[static_cast<size_t>(delta_layer)]; }

 private:
  CacheShape shape_;
  CachePools pools_;
  std::vector<Tensor> units_;
  std::vector<KvLayer> kv_;
  std::vector<int> kv_pools_;
  std::vector<DeltaState> states_;
};

// A CPU's: reserves address space for everything at once and touches none of it. The kernel hands out pages as blocks
// are first written, so memory follows use, not the configured maximum.
class CacheStorage : public CacheViews {
 public:
  static Result<CacheStorage> create(const CacheShape& shape, const PoolCounts& counts);
  CacheStorage(CacheStorage&& o) noexcept { *this = std::move(o); }
  CacheStorage& operator=(CacheStorage&& o) noexcept;
  ~CacheStorage();

  // What is reserved; whole pages.
  std::span<std::byte> memory() const { return {base_, static_cast<size_t>(bytes_)}; }

 private:
  CacheStorage(const CacheShape& shape, std::byte* base, int64_t bytes, const PoolCounts& counts)
      : CacheViews(shape, base, counts), base_(base), bytes_(bytes) {}
  std::byte* base_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace quire
