// The memory of the caches: KV blocks of the attention layers and state slots of the delta-net layers.
#pragma once

#include <vector>

#include "ops/attention/attention.h"
#include "ops/gated_delta/gated_delta.h"

namespace quire {

// What a model's caches look like; 0 layers of a kind is legal.
struct CacheShape {
  int32_t attention_layers = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int32_t delta_layers = 0;
  int32_t conv_taps = 0;      // Kc - 1 inputs kept
  int64_t conv_channels = 0;  // C
  int32_t value_heads = 0, value_dim = 0, key_dim = 0;
  DType kv_dtype = DType::kBF16;

  int64_t block_bytes() const;  // one block over all attention layers, keys and values
  int64_t state_bytes() const;  // one slot over all delta-net layers
};

// Reserves address space for everything at once and touches none of it: the kernel hands out pages as blocks
// are first written, so memory follows use, not the configured maximum.
class CacheStorage {
 public:
  static Result<CacheStorage> create(const CacheShape& shape, int32_t blocks, int32_t slots);
  CacheStorage(CacheStorage&& o) noexcept;
  CacheStorage& operator=(CacheStorage&& o) noexcept;
  ~CacheStorage();

  const CacheShape& shape() const { return shape_; }
  const KvLayer& kv(int attention_layer) const { return kv_[static_cast<size_t>(attention_layer)]; }
  const DeltaState& state(int delta_layer) const { return states_[static_cast<size_t>(delta_layer)]; }
  // Every pool with blocks (or slots) outermost: for copy_slots.
  std::span<const Tensor> block_pools() const { return block_pools_; }
  std::span<const Tensor> state_pools() const { return state_pools_; }
  int64_t reserved_bytes() const { return bytes_; }
  // Pages that are backed by memory now.
  int64_t resident_bytes() const;

 private:
  CacheStorage() = default;
  CacheShape shape_;
  std::byte* base_ = nullptr;
  int64_t bytes_ = 0;
  std::vector<KvLayer> kv_;
  std::vector<DeltaState> states_;
  std::vector<Tensor> block_pools_, state_pools_;
};

}  // namespace quire
