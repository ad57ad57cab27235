// The memory of the caches: pools of units (shape.h), one pool behind the other. All layers of a unit lie together,
// so that copying or swapping one is one contiguous copy:
//   block  [attention layer of the pool][k | v][kv_heads][kv_head_elems]   heads may differ from layer to layer
//   state  [delta layer][state | pending_u | pending_g | pending_k | conv]
// Layers see strided views.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "cache/shape.h"
#include "ops/attention/attention.h"
#include "ops/gated_delta/gated_delta.h"

namespace quire {

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
