// The second kernel of a product whose segments were multiplied apart, and the first of one whose blocks hand sums
// over.
#include <algorithm>

#include "ops/gemm/cuda/launch.h"
#include "ops/gemm/cuda/problem.cuh"
#include "ops/gemm/cuda/tile.cuh"
#include "ops/gemm/cuda/tile_walk.cuh"

namespace quire::gemm {
namespace {

constexpr int kThreads = 128;
constexpr int kAtOnce = 8;  // segments: what a thread loads before it adds

struct Sums {
  const float* of[kMaxParts];
  int32_t first_block[kMaxParts];  // of rows: the part's
};

template <int kEach>
__device__ void load(const float* at, float (&v)[kEach]) {
  if constexpr (kEach == 4)
    *reinterpret_cast<float4*>(v) = *reinterpret_cast<const float4*>(at);
  else
    v[0] = *at;
}
template <int kEach>
__device__ void add(float (&sum)[kEach], const float (&v)[kEach]) {
#pragma unroll
  for (int i = 0; i < kEach; ++i) sum[i] = __fadd_rn(sum[i], v[i]);
}

// One row of y, kEach columns a thread.
template <int kEach>
__global__ void __launch_bounds__(kThreads)
    add_segments(const __grid_constant__ Problem p, const __grid_constant__ Sums sums, float unit,
                 const __grid_constant__ TileGrid grid, int32_t blocks) {
  cuda::begin_kernel(p, sums, grid);
  const Part& part = p.part[blockIdx.z];
  const int32_t n = (static_cast<int32_t>(blockIdx.x) * kThreads + static_cast<int32_t>(threadIdx.x)) * kEach;
  const int64_t row = blockIdx.y, step = static_cast<int64_t>(p.rows) * part.rows;
  if (n >= part.rows) return;
  const float* from = sums.of[blockIdx.z] + row * part.rows + n;
  int32_t s = 1;
  if (grid.dealt) {
    const int64_t tiles = int64_t{grid.row_blocks} * ((p.rows + grid.block - 1) / grid.block);
    const int32_t row_block = sums.first_block[blockIdx.z] + n / (kTileRowTiles * kTileRows);
    s = added_segments(tiles, p.segments, blocks,
                       tile_number(p.rows, grid, row_block, static_cast<int32_t>(blockIdx.y) / grid.block));
  }
  float sum[kEach];
  load(from, sum);
  for (; s + kAtOnce <= p.segments; s += kAtOnce) {
    float v[kAtOnce][kEach];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) load(from + (s + i) * step, v[i]);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) add(sum, v[i]);
  }
  float v[kAtOnce - 1][kEach];
#pragma unroll
  for (int i = 0; i < kAtOnce - 1; ++i)
    if (s + i < p.segments) load(from + (s + i) * step, v[i]);
#pragma unroll
  for (int i = 0; i < kAtOnce - 1; ++i)
    if (s + i < p.segments) add(sum, v[i]);
  const float scale = __fmul_rn(unit, part.scale == nullptr ? 1.0f : part.scale[0]);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const float y = __fadd_rn(__fmul_rn(sum[i], scale), part.bias == nullptr ? 0.0f : part.bias[n + i]);
    const int64_t at = row * part.y_stride + n + i;
    if (part.out == Out::kBf16) {
      static_cast<__nv_bfloat16*>(part.y)[at] = __float2bfloat16_rn(y);
    } else {
      float* to = static_cast<float*>(part.y) + at;
      *to = part.out == Out::kAddF32 ? __fadd_rn(*to, y) : y;
    }
  }
}

__global__ void clear_words(uint32_t* words, int32_t count) {
  cuda::begin_kernel();
  for (auto i = static_cast<int32_t>(threadIdx.x); i < count; i += static_cast<int32_t>(blockDim.x)) words[i] = 0;
}

}  // namespace

Status launch_add_segments(cudaStream_t stream, const Problem& p, const float* const* sums, float unit,
                           const TileGrid& grid, int32_t blocks) {
  Sums s{};
  int32_t widest = 0, row_blocks = 0;
  bool fours = true;
  for (int i = 0; i < p.part_count; ++i) {
    s.of[i] = sums[i];
    s.first_block[i] = row_blocks;
    row_blocks += (p.part[i].row_tiles + kTileRowTiles - 1) / kTileRowTiles;
    widest = std::max(widest, p.part[i].rows);
    fours = fours && p.part[i].rows % 4 == 0 && reinterpret_cast<uintptr_t>(sums[i]) % 16 == 0;
  }
  const int32_t each = fours ? 4 : 1;
  const dim3 threads(static_cast<unsigned>((widest + each * kThreads - 1) / (each * kThreads)),
                     static_cast<unsigned>(p.rows), static_cast<unsigned>(p.part_count));
  return cuda::launch(stream, "a product: adding segments", fours ? add_segments<4> : add_segments<1>, threads,
                      kThreads, 0, p, s, unit, grid, blocks);
}

Status launch_clear(cudaStream_t stream, uint32_t* words, int32_t count) {
  return cuda::launch(stream, "a product: clearing flags", clear_words, dim3(1), 256, 0, words, count);
}

}  // namespace quire::gemm
