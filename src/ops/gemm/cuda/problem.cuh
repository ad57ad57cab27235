// What the kernels of a product share: which unit of work is which, and what becomes of a sum.
#pragma once

#include <cuda_bf16.h>

#include "core/cuda/dependent_launch.cuh"
#include "ops/gemm/cuda/problem.h"

namespace quire::gemm {

using cuda::let_next_kernel_start;
using cuda::wait_for_previous_kernels;

// ---- Blocks of rows. Each expert's rows are cut into blocks of at most `block` rows; blocks are numbered through.

struct RowBlock {
  int32_t expert, begin, count;  // sorted positions [begin, begin + count)
};

// Which expert each block belongs to, in shared memory; grouped launches only.
struct BlockTable {
  int32_t* begin;     // [experts + 1]: the offsets
  int32_t* first;     // [experts + 1]: blocks of the experts before
  uint16_t* experts;  // [bound]
  int32_t bound;
  int32_t* sums;  // [32]: while it is filled
};
inline __host__ __device__ int32_t block_bound(int32_t rows, int32_t experts, int32_t block) {
  return rows < experts + rows / block ? rows : experts + rows / block;
}
inline int32_t block_table_bytes(const Problem& p, int32_t block) {
  return p.offsets == nullptr ? 0 : (p.experts + 1) * 8 + 128 + (block_bound(p.rows, p.experts, block) * 2 + 3) / 4 * 4;
}
__device__ inline BlockTable block_table(const Problem& p, int32_t block, uint8_t* at) {
  auto* begin = reinterpret_cast<int32_t*>(at);
  int32_t* sums = begin + 2 * (p.experts + 1);
  return {begin, begin + p.experts + 1, reinterpret_cast<uint16_t*>(sums + 32), block_bound(p.rows, p.experts, block),
          sums};
}

// By all threads of the block, a multiple of 32; synchronises. A thread for each expert, or for every so many.
__device__ inline void fill_block_table(const Problem& p, int block, const BlockTable& table) {
  int32_t* sums = table.sums;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  int32_t before = 0;  // blocks of the experts of earlier rounds
  for (int base = 0; base < p.experts; base += static_cast<int>(blockDim.x)) {
    const int e = base + static_cast<int>(threadIdx.x);
    const bool mine = e < p.experts;
    const int32_t begin = mine ? p.offsets[e] : 0, own = mine ? (p.offsets[e + 1] - begin + block - 1) / block : 0;
    int32_t sum = own;
    for (int d = 1; d < 32; d *= 2) {
      const int32_t other = __shfl_up_sync(0xffffffffu, sum, d);
      if (lane >= d) sum += other;
    }
    if (lane == 31) sums[warp] = sum;
    __syncthreads();
    int32_t at = before + sum - own;
    for (int w = 0; w < warp; ++w) at += sums[w];
    for (int w = 0; w < warps; ++w) before += sums[w];
    if (mine) {
      table.begin[e] = begin;
      table.first[e] = at;
      for (const int32_t end = at + own; at < end; ++at)
        if (at < table.bound) table.experts[at] = static_cast<uint16_t>(e);
    }
    if (threadIdx.x == 0) table.first[p.experts] = before, table.begin[p.experts] = p.offsets[p.experts];
    __syncthreads();
  }
}
__device__ inline int32_t count_blocks(const Problem& p, int block, const BlockTable& table) {
  return p.offsets == nullptr ? (p.rows + block - 1) / block : min(table.first[p.experts], table.bound);
}

// The rows of an expert are shared out evenly over as few blocks as they need, in multiples of 32 as tiles are wide.
__device__ inline RowBlock find_block(const Problem& p, int block, const BlockTable& table, int32_t index) {
  if (p.offsets == nullptr) return {0, index * block, min(block, p.rows - index * block)};
  const int32_t e = table.experts[index], begin = table.begin[e], all = table.begin[e + 1] - begin;
  if (block < 16) {
    const int32_t at = (index - table.first[e]) * block;
    return {e, begin + at, min(block, all - at)};
  }
  const int32_t blocks = table.first[e + 1] - table.first[e];
  const int32_t each = min(block, ((all + blocks - 1) / blocks + 31) / 32 * 32);
  const int32_t at = (index - table.first[e]) * each;
  return {e, begin + at, max(0, min(each, all - at))};
}

__device__ inline int32_t x_row(const Problem& p, int32_t position) {
  return p.x_rows == nullptr ? position : p.x_rows[position];
}
__device__ inline int32_t y_row(const Problem& p, int32_t position) {
  return p.y_rows == nullptr ? position : p.y_rows[position];
}

// ---- What becomes of a sum. Roundings are spelled out: kernels must agree to the bit.

// 1 / y of y from 1 to kMostReciprocal, rounded to nearest: what __frcp_rn does with numbers that it needs no case
// distinction for, whose branches would make the reciprocals of several numbers wait for each other.
inline constexpr float kMostReciprocal = 0x1p125f;
__device__ inline float reciprocal_from_one(float y) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(y));
  return __fmaf_rn(r, -__fmaf_rn(y, r, -1.0f), r);
}

// gate[i] = the value of gate[i] and up[i], as quire::gated has it. A NaN stays one. Several at once: none waits for
// another.
template <int kCount>
__device__ __forceinline__ void gate_all(GateActivation activation, float (&gate)[kCount], float (&up)[kCount]) {
  float exponent[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) exponent[i] = gate[i];
  if (activation == GateActivation::kGeluTanh) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float g = gate[i], cube = __fmul_rn(__fmul_rn(static_cast<float>(glu::kGeluCube), g), g);
      exponent[i] = __fmul_rn(static_cast<float>(2 * glu::kGeluRoot), __fmaf_rn(cube, g, g));
    }
  } else if (activation == GateActivation::kSwigluOai) {
    constexpr float kLimit = glu::kOaiLimit;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float g = gate[i], u = up[i];
      gate[i] = g > kLimit ? kLimit : g;
      up[i] = __fadd_rn(u > kLimit ? kLimit : u < -kLimit ? -kLimit : u, 1.0f);
      exponent[i] = __fmul_rn(static_cast<float>(glu::kOaiAlpha), gate[i]);
    }
  }
  float sigmoid[kCount];
  bool plain = true;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    exponent[i] = __fadd_rn(1.0f, __expf(-exponent[i]));
    sigmoid[i] = reciprocal_from_one(exponent[i]);
    plain &= exponent[i] <= kMostReciprocal;
  }
  if (!plain) {  // a gate below -86, or a NaN
#pragma unroll
    for (int i = 0; i < kCount; ++i) sigmoid[i] = __frcp_rn(exponent[i]);
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) gate[i] = __fmul_rn(__fmul_rn(gate[i], sigmoid[i]), up[i]);
}
__device__ inline float gated(GateActivation activation, float g, float u) {
  float gate[1] = {g}, up[1] = {u};
  gate_all(activation, gate, up);
  return gate[0];
}

// The two rows that a lane holds of a 16-row tile: g = lane / 4 and g + 8.
struct LaneRows {
  float scale, scale8, bias, bias8;
  int32_t n, n8;  // outputs; both the same if paired
  bool valid, valid8;

  __device__ float value(float sum) const { return __fadd_rn(__fmul_rn(sum, scale), bias); }
  __device__ float value8(float sum) const { return __fadd_rn(__fmul_rn(sum, scale8), bias8); }
};

__device__ inline LaneRows lane_rows(const Problem& p, const Part& part, int32_t expert, int32_t row_tile, int lane,
                                     float unit) {
  LaneRows r;
  const float s = part.scale == nullptr ? 1.0f : part.scale[expert];
  r.scale = __fmul_rn(unit, s);
  r.scale8 = r.scale;
  r.n = row_tile * (p.paired ? 8 : 16) + lane / 4;
  r.n8 = p.paired ? r.n : r.n + 8;
  r.valid = r.n < part.rows;
  r.valid8 = r.n8 < part.rows;
  const int64_t biases = static_cast<int64_t>(expert) * part.rows;
  r.bias = r.valid && part.bias != nullptr ? part.bias[biases + r.n] : 0.0f;
  if (p.paired) {
    r.scale8 = __fmul_rn(unit, part.scale2 == nullptr ? 1.0f : part.scale2[expert]);
    r.bias8 = r.valid && part.bias2 != nullptr ? part.bias2[biases + r.n] : 0.0f;
  } else {
    r.bias8 = r.valid8 && part.bias != nullptr ? part.bias[biases + r.n8] : 0.0f;
  }
  return r;
}

// One column of results (one row of y) of a lane: the sums of its rows g and g + 8.
__device__ inline void store_pair(const Problem& p, const Part& part, const LaneRows& r, int32_t row, float sum,
                                  float sum8) {
  const int64_t at = row * part.y_stride;
  if (p.paired) {
    if (r.valid)
      static_cast<__nv_bfloat16*>(part.y)[at + r.n] =
          __float2bfloat16_rn(gated(p.activation, r.value(sum), r.value8(sum8)));
    return;
  }
  const float v = r.value(sum), v8 = r.value8(sum8);
  if (part.out == Out::kBf16) {
    auto* y = static_cast<__nv_bfloat16*>(part.y) + at;
    if (r.valid) y[r.n] = __float2bfloat16_rn(v);
    if (r.valid8) y[r.n8] = __float2bfloat16_rn(v8);
  } else {
    auto* y = static_cast<float*>(part.y) + at;
    const bool add = part.out == Out::kAddF32;
    if (r.valid) y[r.n] = add ? __fadd_rn(y[r.n], v) : v;
    if (r.valid8) y[r.n8] = add ? __fadd_rn(y[r.n8], v8) : v8;
  }
}

}  // namespace quire::gemm
