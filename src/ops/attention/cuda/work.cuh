// From the segments of a step to a list of work items, in shared memory, by every block for itself: a few hundred
// segments cost less than a launch.
#pragma once

#include <cstdint>

#include "ops/segments.h"

namespace quire::cuda {

// first[i] = the number of items of segments [0, i), for i = 0 ... count; items(segment) >= 0. All threads of the block
// call it; first has count + 1 entries.
template <class Items>
__device__ void list_work(const Segment* segments, int count, int32_t* first, Items items) {
  for (int i = threadIdx.x; i < count; i += blockDim.x) first[i + 1] = items(segments[i]);
  __syncthreads();
  if (threadIdx.x < 32) {
    int32_t total = 0;
    for (int i = 0; i < count; i += 32) {
      const int at = i + static_cast<int>(threadIdx.x);
      int32_t x = at < count ? first[at + 1] : 0;
      for (int step = 1; step < 32; step *= 2) {
        const int32_t before = __shfl_up_sync(~0u, x, step);
        if (static_cast<int>(threadIdx.x) >= step) x += before;
      }
      if (at < count) first[at + 1] = total + x;
      total += __shfl_sync(~0u, x, 31);
    }
    if (threadIdx.x == 0) first[0] = 0;
  }
  __syncthreads();
}

// The segment of an item: the last i with first[i] <= item.
__device__ __forceinline__ int segment_of(const int32_t* first, int count, int32_t item) {
  int low = 0, high = count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (first[middle] <= item) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace quire::cuda
