// Fetching what a later kernel reads into the L2.
#pragma once

#include "core/cuda/weight_order.h"

namespace quire::cuda {

// Part `part` of `parts` of the block's share, by all threads; waits for nothing. Only for what no kernel writes:
// weights.
__device__ __forceinline__ void prefetch(const Prefetch& p, int part, int parts) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const auto lines = static_cast<int32_t>(p.bytes[i] / kLineBytes);
    const int32_t end = lines * (part + 1) / parts;
    const std::byte* const from = p.data[i] + blockIdx.x * p.stride[i];
    for (int32_t line = lines * part / parts + static_cast<int32_t>(threadIdx.x); line < end;
         line += static_cast<int32_t>(blockDim.x))
      asm volatile("prefetch.global.L2 [%0];" : : "l"(from + line * kLineBytes));
  }
}

}  // namespace quire::cuda
