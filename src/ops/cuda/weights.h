// Weights that lie packed on a GPU: Weight::data points to the tiles, and its type and shape say the rest. Two that
// SwiGLU puts together are packed as one and have the same data.
#pragma once

#include "core/cuda/weight_order.h"
#include "ops/gemm/cuda/packed.h"
#include "ops/op.h"

namespace quire::cuda {

inline gemm::PackedWeight packed(const Weight& w) {
  return {.format = gemm::tile_format(w.dtype),
          .data = w.data,
          .rows = static_cast<int32_t>(w.rows),
          .cols = static_cast<int32_t>(w.cols),
          .experts = static_cast<int32_t>(w.experts)};
}
inline gemm::PackedWeight packed_pair(const Weight& gate) {
  gemm::PackedWeight p = packed(gate);
  p.paired = true;
  return p;
}

// What a product reads, for the order of weights.
inline WeightOrder::Range range_of(const gemm::PackedWeight& w) {
  return {static_cast<const std::byte*>(w.data), w.bytes()};
}

}  // namespace quire::cuda
