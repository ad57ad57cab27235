// Small device functions that the kernels of the delta net and of the norms share.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "core/cuda/dependent_launch.cuh"
#include "ops/gated_delta/cuda/slots.h"

namespace quire::cuda {

inline constexpr unsigned kAllLanes = 0xffffffffu;

// Sum over `Width` neighbouring lanes, the same bits in each of them.
template <int Width = 32>
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int mask = Width / 2; mask > 0; mask /= 2) x += __shfl_xor_sync(kAllLanes, x, mask);
  return x;
}

// x / (1 + e^-x), good to a few ulp.
__device__ __forceinline__ float silu(float x) {
  return __fdividef(x, 1.0f + __expf(-x));
}

// ln(1 + e^x), without overflow.
__device__ __forceinline__ float softplus(float x) {
  return x > 20.0f ? x : log1pf(expf(x));
}

__device__ __forceinline__ float sigmoid(float x) {
  return 1.0f / (1.0f + expf(-x));
}

__device__ __forceinline__ uint32_t pack_bf16(float lo, float hi) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(lo, hi);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ __forceinline__ float low_bf16(uint32_t pair) {
  return __uint_as_float(pair << 16);
}
__device__ __forceinline__ float high_bf16(uint32_t pair) {
  return __uint_as_float(pair & 0xffff0000u);
}
__device__ __forceinline__ float4 unpack_bf16(uint2 x) {
  return {low_bf16(x.x), high_bf16(x.x), low_bf16(x.y), high_bf16(x.y)};
}

// Without a branch, so that several are in flight at once.
__device__ __forceinline__ float gate_input(const GateInput& in, int64_t row, int h) {
  const auto* halves = static_cast<const uint16_t*>(in.data) + (row * in.stride + h) * (in.bf16 ? 1 : 2);
  const uint32_t low = halves[0], high = halves[in.bf16 ? 0 : 1];
  return __uint_as_float(high << 16 | (in.bf16 ? 0u : low));
}

// Named barriers among kCount threads of a block: wait for all of them, or only say that this warp has come.
// 0 is __syncthreads'.
template <int kCount>
__device__ __forceinline__ void barrier_sync(int id) {
  __syncwarp();  // the instruction counts warps, not threads: all lanes must have come this far
  asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(kCount) : "memory");
}
template <int kCount>
__device__ __forceinline__ void barrier_arrive(int id) {
  __syncwarp();
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(kCount) : "memory");
}

template <class T>
__device__ __forceinline__ T* of_slot(const SlotView<T>& view, int32_t slot) {
  return reinterpret_cast<T*>(reinterpret_cast<char*>(view.base) + view.stride_bytes * slot);
}

__device__ __forceinline__ int key_head_of(const DeltaShape& n, int h) {
  return n.grouped ? h / (n.Hv / n.Hk) : h % n.Hk;
}
// Whether h is the first value head of its key head: one block among those that share a key head writes what
// is the key head's.
__device__ __forceinline__ bool owns_key_head(const DeltaShape& n, int h) {
  return n.grouped ? h % (n.Hv / n.Hk) == 0 : h < n.Hk;
}

// 16 bytes to shared memory, asynchronously; zeros if not valid.
__device__ __forceinline__ void copy_async(void* shared, const void* global, bool valid = true) {
  const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes) : "memory");
}
__device__ __forceinline__ void copy_async_4(void* shared, const void* global) {
  const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(global) : "memory");
}
__device__ __forceinline__ void copy_async_8(void* shared, const void* global) {
  const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(global) : "memory");
}
__device__ __forceinline__ void copy_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int Pending>
__device__ __forceinline__ void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

// Tiles of `rows` rows over the prompt segments of a step, in order: the tile with number `tile`, found by a
// whole warp.
struct SegmentTile {
  Segment segment;
  int32_t first = 0;   // row of the segment where the tile begins
  int32_t index = -1;  // which segment; -1: there are fewer tiles
};
__device__ inline SegmentTile find_tile(const SegmentArray& all, int tile, int rows) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int base = all.decodes; base < all.count; base += 32) {
    const int i = base + lane;
    const int tiles = i < all.count ? (all.data[i].count + rows - 1) / rows : 0;
    int before = tiles;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(kAllLanes, before, step);
      if (lane >= step) before += other;
    }
    const unsigned past = __ballot_sync(kAllLanes, before > tile);
    if (past != 0) {
      const int owner = __ffs(static_cast<int>(past)) - 1;
      const int start = __shfl_sync(kAllLanes, before - tiles, owner);
      return {all.data[base + owner], (tile - start) * rows, base + owner};
    }
    tile -= __shfl_sync(kAllLanes, before, 31);
  }
  return {};
}

}  // namespace quire::cuda
