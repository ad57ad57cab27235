// K slices apart: the products of a weight of few rows (a router) by any number of rows of tokens, of which the sum of
// each K slice is stored by itself (Product::apart). A block of threads takes one K slice of one row tile and up to 128
// rows of x, all of which lies in shared memory at once: weights are asked for before the kernel before this one has
// ended, tile by tile, then every warp asks for the rows that it multiplies.
#pragma once

#include <algorithm>
#include <optional>

#include "ops/gemm/cuda/copy.cuh"
#include "ops/gemm/cuda/launch.h"
#include "ops/gemm/cuda/problem.cuh"
#include "ops/gemm/cuda/warp_products.cuh"

namespace quire::gemm {

inline constexpr int kKSliceWarps = 4;

struct KSlicesPlan {
  int32_t warps;    // of a block, each with 8 kGroups rows of x
  int32_t x_pitch;  // bytes from row to row: 16 more than a multiple of 128, so that ldmatrix meets no bank twice
  int32_t x_at, barriers_at, shared_bytes;
};

// As many rows of x as there are, and as shared memory has room for; nothing where one warp's do not fit.
inline std::optional<KSlicesPlan> plan_k_slices(const Problem& p, int tile_bytes, int groups, int64_t shared_bytes) {
  KSlicesPlan plan{};
  plan.x_pitch = p.k_slice_tiles * 128 + 16;
  plan.x_at = p.k_slice_tiles * tile_bytes;
  for (plan.warps = std::min((p.rows + 8 * groups - 1) / (8 * groups), kKSliceWarps); plan.warps > 0; plan.warps /= 2) {
    plan.barriers_at = plan.x_at + plan.warps * 8 * groups * plan.x_pitch;
    plan.shared_bytes = plan.barriers_at + 8 * (p.k_slice_tiles + plan.warps);
    if (plan.shared_bytes <= shared_bytes) return plan;
  }
  return {};
}

// Grid: row tiles, K slices, blocks of rows of x.
template <class D, int kGroups>
__global__ void __launch_bounds__(32 * kKSliceWarps)
    k_slices_kernel(const __grid_constant__ Problem p, const __grid_constant__ KSlicesPlan plan) {
  extern __shared__ __align__(1024) uint8_t shared[];
  constexpr int kBlock = 8 * kGroups;
  let_next_kernel_start();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const auto row_tile = static_cast<int32_t>(blockIdx.x), k_slice = static_cast<int32_t>(blockIdx.y);
  const int32_t first_row = (static_cast<int32_t>(blockIdx.z) * plan.warps + warp) * kBlock;
  const int32_t rows = min(kBlock, p.rows - first_row);  // of the warp
  const int32_t first_tile = k_slice * p.k_slice_tiles, tiles = min(p.k_slice_tiles, p.col_tiles - first_tile);
  const int32_t x_bytes = min(tiles * 128, (p.cols - first_tile * kTileCols) * 2);  // of a row
  const uint32_t weights = shared_address(shared), x = weights + plan.x_at + warp * kBlock * plan.x_pitch;
  const uint32_t weights_full = weights + plan.barriers_at;  // a barrier for each column tile
  const uint32_t x_full = weights_full + 8 * (p.k_slice_tiles + warp);
  if (warp == 0)
    for (int32_t t = lane; t < tiles; t += 32) barrier_init(weights_full + 8 * t, kCopyArrivals);
  if (lane == 0) barrier_init(x_full, kCopyArrivals);
  // Columns past the last have weights of zero; what lies in their place must be finite.
  for (int32_t row = 0; row < rows; ++row)
    for (int32_t at = x_bytes + lane * 4; at < tiles * 128; at += 128)
      asm volatile("st.shared.u32 [%0], %1;" : : "r"(x + row * plan.x_pitch + at), "r"(0) : "memory");
  order_before_copies();
  __syncthreads();
  const uint8_t* const from =
      p.part[0].weight + (static_cast<int64_t>(row_tile) * p.col_tiles + first_tile) * D::kTileBytes;
  for (int32_t t = 0; warp == 0 && t < tiles; ++t) {
    expect_copies(weights_full + 8 * t, lane, D::kTileBytes);
    copy_run(weights + t * D::kTileBytes, from + t * D::kTileBytes, D::kTileBytes, weights_full + 8 * t, lane);
    end_copies(weights_full + 8 * t);
  }
  wait_for_previous_kernels();
  if (rows <= 0) return;  // never the first warp, whose copies must be waited for
  expect_copies(x_full, lane, rows * x_bytes);
  copy_rows(x, plan.x_pitch, p.x + (first_row + lane) * p.x_stride + first_tile * kTileCols, lane < rows, x_bytes,
            x_full, lane, rows);
  end_copies(x_full);
  WarpProducts<D, kGroups> products(lane, {lane, rows, plan.x_pitch});
  products.clear();
  barrier_wait(x_full, 0);
  for (int32_t t = 0; t < tiles; ++t) {
    barrier_wait(weights_full + 8 * t, 0);
    __syncwarp();
    products.multiply(weights + t * D::kTileBytes, x + t * 128, 1);
  }
  const LaneRows r = lane_rows(p, p.part[0], 0, row_tile, lane, D::kUnit);
#pragma unroll
  for (int i = 0; i < kGroups; ++i)
#pragma unroll
    for (int c = 0; c < 2; ++c)
      if (const int32_t row = 8 * i + lane % 4 * 2 + c; row < rows)
        store_pair(p, p.part[0], r, k_slice * p.rows + first_row + row, products.sum[i][c], products.sum[i][2 + c]);
}

}  // namespace quire::gemm
