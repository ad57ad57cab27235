// Rows of bf16 as E4M3 with a scale for each 128 columns, as the tiles of tile_e4m3.cuh take them. What a row becomes
// depends on that row alone; ops/gemm/e4m3_tokens.h defines it.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "core/cuda/dependent_launch.cuh"
#include "core/cuda/target.cuh"
#include "ops/gemm/e4m3_tokens.h"

namespace quire::gemm::e4m3 {

inline constexpr int kBlockCols = kE4m3TokenCols;  // that share a scale

// Where rounded rows lie.
struct RoundedRows {
  uint8_t* codes;        // [rows][cols], aligned to 16 bytes
  float* scales;         // [cols / 128][scale_stride]
  int64_t scale_stride;  // a multiple of 256
};

// Tiles copy scales from multiples of 16 bytes on. Where rows are sorted by expert, those of an expert begin at its
// first tile's: `offset` is its first sorted position. Experts that follow each other never overlap.
__host__ __device__ constexpr int32_t first_scale_of(int32_t offset, int32_t expert) {
  return (offset + 4 * expert) & ~3;
}

struct Quantize {
  const __nv_bfloat16* x;  // rows aligned to 16 bytes
  int64_t x_stride;        // elements
  const int32_t* x_rows;   // which row of x each is; null: its own number
  const int32_t* offsets;  // [experts + 1] of rows that are sorted by expert, null: they are not
  int32_t rows, cols;      // cols: a multiple of 128
  int32_t experts;
  RoundedRows to;
};

// The codes of two numbers, the first in the lower byte.
__device__ inline uint32_t to_e4m3x2(float lo, float hi) {
  uint16_t r;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(hi), "f"(lo));
  return r;
}

// The expert that a sorted position belongs to: the last one that begins there or before.
__device__ inline int32_t expert_of(const int32_t* offsets, int32_t experts, int32_t position) {
  int32_t low = 0, high = experts;
  while (high - low > 1) {
    const int32_t middle = (low + high) / 2;
    if (offsets[middle] <= position)
      low = middle;
    else
      high = middle;
  }
  return low;
}

inline constexpr int kQuantizeThreads = 256;

// A warp takes a row, 16 lanes a block of 128 columns, a lane eight columns. The columns of every 16 are left in the
// order 0 1 8 9, 2 3 10 11, 4 5 12 13, 6 7 14 15.
__device__ inline void quantize_rows(const Quantize& q) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int32_t row = static_cast<int32_t>(blockIdx.x) * (kQuantizeThreads / 32) + static_cast<int>(threadIdx.x) / 32;
  if (row >= (q.offsets != nullptr ? q.offsets[q.experts] : q.rows)) return;
  int32_t scale_at = row;
  if (q.offsets != nullptr) {
    const int32_t expert = expert_of(q.offsets, q.experts, row), begin = q.offsets[expert];
    scale_at += first_scale_of(begin, expert) - begin;
  }
  const __nv_bfloat16* x = q.x + (q.x_rows != nullptr ? q.x_rows[row] : row) * q.x_stride;
  for (int32_t first = static_cast<int32_t>(blockIdx.y) * 256; first < q.cols;
       first += static_cast<int32_t>(gridDim.y) * 256) {
    const int32_t col = first + lane * 8;
    const bool mine = col < q.cols;  // of half a warp
    const uint4 words = mine ? *reinterpret_cast<const uint4*>(x + col) : uint4{};
    const uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
    float v[8];
    uint32_t most =
        __float_as_uint(kLeastE4m3Magnitude);  // as integers, magnitudes of NaN and infinity are the largest
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t bits = i % 2 == 0 ? pairs[i / 2] << 16 : pairs[i / 2] & 0xffff0000u;
      v[i] = __uint_as_float(bits);
      most = max(most, bits & 0x7fffffffu);
    }
#pragma unroll
    for (int d = 8; d > 0; d /= 2) most = max(most, __shfl_xor_sync(~0u, most, d));
    const float largest = __uint_as_float(most), factor = __fdiv_rn(kLargestE4m3, largest);
    uint32_t half[2];  // columns 0-3 and 4-7 of the lane's
#pragma unroll
    for (int i = 0; i < 2; ++i)
      half[i] = to_e4m3x2(__fmul_rn(v[4 * i], factor), __fmul_rn(v[4 * i + 1], factor)) |
                to_e4m3x2(__fmul_rn(v[4 * i + 2], factor), __fmul_rn(v[4 * i + 3], factor)) << 16;
    // Two lanes have 16 columns: the first makes the first eight bytes, the second the last.
    const bool second = lane % 2 != 0;
    const uint32_t other = __shfl_xor_sync(~0u, half[second ? 0 : 1], 1);
    const uint32_t lower = second ? other : half[0], upper = second ? half[1] : other;
    if (!mine) continue;
    *reinterpret_cast<uint2*>(q.to.codes + static_cast<int64_t>(row) * q.cols + col) =
        make_uint2(__byte_perm(lower, upper, 0x5410), __byte_perm(lower, upper, 0x7632));
    if (lane % 16 == 0) q.to.scales[col / 128 * q.to.scale_stride + scale_at] = __fdiv_rn(largest, kLargestE4m3);
  }
}

__global__ void __launch_bounds__(kQuantizeThreads) quantize_e4m3(const __grid_constant__ Quantize q) {
  cuda::begin_kernel(q);
  if constexpr (cuda::kForWgmma)
    quantize_rows(q);
  else
    __trap();  // never launched
}

}  // namespace quire::gemm::e4m3
