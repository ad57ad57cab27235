// A barrier for all blocks of a grid, for kernels whose phases need what other blocks have computed.
//
// All blocks must be on the device at the same time: core/cuda/cooperative.h launches such kernels.
#pragma once

#include <cuda_runtime.h>

#include "core/cuda/grid_barrier.h"

namespace quire::cuda {

// By all threads. What any thread of the grid wrote before can be read after.
__device__ __forceinline__ void wait_for_grid(GridBarrier* arrived) {
  __syncthreads();
  if (threadIdx.x == 0) {
    GridBarrier before = 0, now = 0;
    asm volatile("atom.add.acq_rel.gpu.global.u64 %0, [%1], 1;" : "=l"(before) : "l"(arrived) : "memory");
    const GridBarrier all = (before / gridDim.x + 1) * gridDim.x;
    do asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(now) : "l"(arrived) : "memory");
    while (now < all);
  }
  __syncthreads();
}

}  // namespace quire::cuda
