// Rows of bf16 as FP4, as the tiles of tile_fp4.cuh take them. What a row becomes depends on that row alone;
// ops/gemm/fp4_tokens.h defines it, and mma_fp4.cuh the order of the columns.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "core/cuda/dependent_launch.cuh"
#include "core/cuda/target_fp4.cuh"
#include "ops/gemm/cuda/packed.h"
#include "ops/gemm/fp4_tokens.h"

namespace quire::gemm::fp4 {

// Where rounded rows lie: for each column tile (64 columns), for each row, 32 bytes of codes, and a word of scales.
struct RoundedRows {
  uint32_t* codes;     // [col_tiles][row_stride][8], aligned to 16 bytes
  uint32_t* scales;    // [col_tiles][row_stride]
  float* factors;      // [row_stride]: what a row's sums are to be multiplied by
  int64_t row_stride;  // rows
};

struct Quantize {
  const __nv_bfloat16* x;  // rows aligned to 16 bytes
  int64_t x_stride;        // elements
  const int32_t* x_rows;   // which row of x each is; null: its own number
  const int32_t* count;    // of rows, on the device; null: as many as blocks
  int32_t cols, col_tiles;
  RoundedRows to;
};

// The nearest code of E2M1, ties to even; of a NaN some code.
__device__ inline uint32_t to_e2m1(float x) {
  const float a = fminf(fabsf(x), 6.0f);
  const uint32_t bits = __float_as_uint(a), sign = __float_as_uint(x) >> 28 & 8u;
  // Below 1 codes are halves: so are the last bits of numbers of 2^22.
  const uint32_t small = __float_as_uint(__fadd_rn(a, 0x1p22f)) & 7u;
  const uint32_t large = ((bits + 0x1fffffu + (bits >> 22 & 1u)) >> 22) - 252u;
  return sign | (a < 1.0f ? small : large);
}
// Likewise of a number from 0 on to UE4M3.
__device__ inline uint32_t to_ue4m3(float x) {
  if (!(x < 448.0f)) return 0x7e;
  if (x < 0x1p-6f) return __float_as_uint(__fadd_rn(x, 0x1p14f)) - __float_as_uint(0x1p14f);
  const uint32_t bits = __float_as_uint(x);
  return (bits + 0x7ffffu + (bits >> 20 & 1u) - ((127u - 7u) << 23)) >> 20;
}

// Sixteen columns, of a step.
struct Step {
  float v[16];
  uint32_t largest = kLeastFp4Magnitude;  // bits of a magnitude: those of NaN and infinity are the largest

  __device__ void load(const __nv_bfloat16* from) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4 words = *reinterpret_cast<const uint4*>(from + 8 * half);
      const uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const uint32_t bits = i % 2 == 0 ? pairs[i / 2] << 16 : pairs[i / 2] & 0xffff0000u;
        v[8 * half + i] = __uint_as_float(bits);
        largest = max(largest, bits & 0x7fffffffu);
      }
    }
  }
  // What lane t of a packed word's four has: codes of columns 2t, 2t+8, 2t+1, 2t+9.
  __device__ void codes(float inverse, uint32_t (&of)[4]) const {
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const auto code = [&](int c) { return to_e2m1(__fmul_rn(v[c], inverse)); };
      of[t] = code(2 * t) | code(2 * t + 8) << 4 | code(2 * t + 1) << 8 | code(2 * t + 9) << 12;
    }
  }
};

inline constexpr int kQuantizeThreads = 128;

// By all threads: the bits of the row's largest magnitude.
__device__ inline uint32_t largest_of_row(const __nv_bfloat16* x, int32_t cols) {
  __shared__ uint32_t of_warps[kQuantizeThreads / 32];
  uint32_t most = kLeastFp4Magnitude;
  for (int32_t c = static_cast<int32_t>(threadIdx.x) * 8; c < cols; c += kQuantizeThreads * 8) {
    const uint4 words = *reinterpret_cast<const uint4*>(x + c);
    const uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (const uint32_t pair : pairs) most = max(most, max(pair << 16 & 0x7fffffffu, pair & 0x7fff0000u));
  }
  most = __reduce_max_sync(~0u, most);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = most;
  __syncthreads();
#pragma unroll
  for (const uint32_t other : of_warps) most = max(most, other);
  return most;
}

// A thread takes 16 columns, the step of a column tile.
__device__ inline void quantize_nvfp4(const Quantize& q, const __nv_bfloat16* x, int32_t row, uint32_t largest) {
  const uint32_t exponent = min(largest >> 23, 254u) - kFp4RowBits;
  const float power = __uint_as_float(exponent << 23), inverse_power = __uint_as_float((254 - exponent) << 23);
  if (threadIdx.x == 0) q.to.factors[row] = largest >= kNoNumber ? __uint_as_float(0x7fc00000u) : power;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < q.col_tiles * 4; i += kQuantizeThreads) {
    const int32_t tile = i / 4, step = i % 4;
    Step s;
    s.load(x + i * 16);
    const uint32_t scale = to_ue4m3(__fmul_rn(__fdiv_rn(__uint_as_float(s.largest), 6.0f), inverse_power));
    const float decoded =
        scale < 8 ? static_cast<float>(scale) * 0x1p-9f : __uint_as_float((scale << 20) + ((127u - 7u) << 23));
    uint32_t of[4];
    s.codes(scale == 0 ? 0.0f : __fdiv_rn(1.0f, __fmul_rn(decoded, power)), of);
    const int64_t at = tile * q.to.row_stride + row;
    uint32_t* const to = q.to.codes + at * 8 + step / 2 * 4 + step % 2;
    to[0] = step < 2 ? of[0] | of[2] << 16 : of[2] | of[0] << 16;
    to[2] = step < 2 ? of[1] | of[3] << 16 : of[3] | of[1] << 16;
    reinterpret_cast<uint8_t*>(q.to.scales + at)[(step & 1) * 2 + step / 2] = static_cast<uint8_t>(scale);
  }
}

// A thread takes 32 columns, a half of a column tile; the last may have none.
__device__ inline void quantize_mxfp4(const Quantize& q, const __nv_bfloat16* x, int32_t row, uint32_t largest) {
  if (threadIdx.x == 0) q.to.factors[row] = largest >= kNoNumber ? __uint_as_float(0x7fc00000u) : 1.0f;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < q.col_tiles * 2; i += kQuantizeThreads) {
    const int32_t tile = i / 2, half = i % 2;
    uint32_t first[4] = {}, second[4] = {}, scale = 0;
    if (i * 32 < q.cols) {
      Step s, next;
      s.load(x + i * 32);
      next.load(x + i * 32 + 16);
      const uint32_t most = min(max(s.largest, next.largest), kNoNumber - 1);
      scale = (most >> 23) - kMxfp4Bits + ((most & 0x7fffffu) > kMxfp4RoundedUp ? 1 : 0);
      const float inverse = __fdiv_rn(1.0f, __uint_as_float(scale << 23));
      s.codes(inverse, first);
      next.codes(inverse, second);
    }
    const int64_t at = tile * q.to.row_stride + row;
    uint32_t* const to = q.to.codes + at * 8 + half;
#pragma unroll
    for (int t = 0; t < 4; ++t) to[2 * t] = first[t] | second[t] << 16;
    reinterpret_cast<uint8_t*>(q.to.scales + at)[half] = static_cast<uint8_t>(scale);
  }
}

// A block of threads for each row.
template <TileFormat F>
__global__ void __launch_bounds__(kQuantizeThreads) quantize_fp4(const __grid_constant__ Quantize q) {
  cuda::begin_kernel(q);
  if constexpr (cuda::kHasFp4) {
    const auto row = static_cast<int32_t>(blockIdx.x);
    if (q.count != nullptr && row >= *q.count) return;
    const __nv_bfloat16* x = q.x + (q.x_rows != nullptr ? q.x_rows[row] : row) * q.x_stride;
    const uint32_t largest = largest_of_row(x, q.cols);
    if constexpr (F == TileFormat::kMxfp4)
      quantize_mxfp4(q, x, row, largest);
    else
      quantize_nvfp4(q, x, row, largest);
  } else {
    __trap();  // never launched
  }
}

}  // namespace quire::gemm::fp4
