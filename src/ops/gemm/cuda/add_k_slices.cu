// The second kernel of a product whose K slices were multiplied apart, and the first of one whose blocks hand sums
// over.
#include "ops/gemm/cuda/launch.h"
#include "ops/gemm/cuda/problem.cuh"
#include "ops/gemm/cuda/tile_walk.cuh"

namespace quire::gemm {
namespace {

constexpr int kThreads = 128;
constexpr int kAtOnce = 12;  // K slices: what a thread asks for before it adds

__device__ float4 added(const float4& a, const float4& b) {
  return make_float4(__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z), __fadd_rn(a.w, b.w));
}

// A thread adds what lanes with its number left of four row tiles and eight rows of x: their rows g and g + 8, of two
// rows of x.
__global__ void __launch_bounds__(kThreads)
    add_k_slices(const __grid_constant__ Problem p, const __grid_constant__ ApartSums sums, float unit) {
  cuda::begin_kernel(p, sums);
  int32_t group = static_cast<int32_t>(blockIdx.y);
  const auto eight = static_cast<int32_t>(blockIdx.x);
  const float4* from = sums.at + sums.place(0, group, eight) + threadIdx.x;
  const int64_t step = sums.place(1, 0, 0);
  float4 v[kAtOnce];
  float4 sum = *from;
  for (int32_t s = 1; s < p.k_slices; s += kAtOnce) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (s + i < p.k_slices) v[i] = from[(s + i) * step];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (s + i < p.k_slices) sum = added(sum, v[i]);
  }
  int part = 0;
  for (; part + 1 < p.part_count && group >= groups_of(p.part[part]); ++part) group -= groups_of(p.part[part]);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const LaneRows rows = lane_rows(p, p.part[part], 0, group * kGroupRowTiles + warp, lane, unit);
  const int32_t row = 8 * eight + lane % 4 * 2;
  if (row < p.rows) store_pair(p, p.part[part], rows, row, sum.x, sum.z);
  if (row + 1 < p.rows) store_pair(p, p.part[part], rows, row + 1, sum.y, sum.w);
}

__global__ void clear_words(uint32_t* words, int32_t count) {
  cuda::begin_kernel();
  for (auto i = static_cast<int32_t>(threadIdx.x); i < count; i += static_cast<int32_t>(blockDim.x)) words[i] = 0;
}

}  // namespace

Status launch_add_k_slices(cudaStream_t stream, const Problem& p, const ApartSums& sums, float unit) {
  const dim3 blocks(static_cast<unsigned>(sums.eights), static_cast<unsigned>(sums.groups));
  return cuda::launch(stream, "a product: adding K slices", add_k_slices, blocks, kThreads, 0, p, sums, unit);
}

Status launch_clear(cudaStream_t stream, uint32_t* words, int32_t count) {
  return cuda::launch(stream, "a product: clearing flags", clear_words, dim3(1), 256, 0, words, count);
}

}  // namespace quire::gemm
