// How tile kernels are laid out in shared memory, and their launches.
#pragma once

#include <algorithm>

#include "core/cuda/tensor_map.h"
#include "ops/gemm/cuda/launch.h"
#include "ops/gemm/cuda/tile.cuh"
#include "ops/gemm/cuda/tile_mma.cuh"

namespace quire::gemm {

inline Status tiles_do_not_fit(const Problem& p, int32_t block) {
  return Error{Fault::kBug, fmt::format("tiles for {} rows and {} experts do not fit shared memory", block, p.experts)};
}

template <int kRowTiles>
TileGrid tile_grid(const Problem& p, const LaunchChoice& choice, int32_t most_rows) {
  TileGrid grid{};
  grid.block = std::min(choice.block_rows, most_rows);
  grid.k_slices = choice.sliced ? p.k_slices : 1;
  grid.dealt = choice.dealt;
  if (choice.sliced) grid.apart = apart_sums(p, choice.sums);
  for (int i = 0; i < p.part_count; ++i) grid.row_blocks += (p.part[i].row_tiles + kRowTiles - 1) / kRowTiles;
  return grid;
}
// Grouped: how many there are is known on the device only.
inline Result<int64_t> tile_bound(const Problem& p, const TileGrid& grid) {
  const int64_t blocks =
      p.offsets != nullptr ? block_bound(p.rows, p.experts, grid.block) : (p.rows + grid.block - 1) / grid.block;
  const int64_t tiles = blocks * grid.row_blocks * grid.k_slices;
  if (tiles >= INT32_MAX) return Error{Fault::kBug, "a product of more than 2^31 tiles"};
  return std::max<int64_t>(tiles, 1);
}

// How much of a multiprocessor's shared memory a block of threads may take where two share it: each has 1 KiB besides.
inline int half_of_shared(const cuda::DeviceLimits& device) {
  return (device.shared_bytes - 1024) / 2;
}

// Stages of the ring, and what lies behind them; false where they do not fit.
template <class D>
bool lay_out(TilePlan& plan, int width, int table_bytes, int shared_bytes) {
  plan.token_bytes = width * 128;
  const int beside = kConsumers * kStagingBytes + 2 * 8 * 8 + table_bytes;
  constexpr int kFewest = kMostStageTiles<D> == 1 ? 2 : 3;  // TileConsumer::column_tile
  for (plan.stage_tiles = kMostStageTiles<D>; plan.stage_tiles > 0; --plan.stage_tiles) {
    plan.weight_bytes = (kTileRowTiles * plan.stage_tiles * D::kTileBytes + 1023) / 1024 * 1024;
    plan.stage_bytes = plan.weight_bytes + plan.stage_tiles * plan.token_bytes;
    plan.stages = std::min((shared_bytes - beside) / plan.stage_bytes, 8);
    if (plan.stages >= (plan.stage_tiles > 1 ? 4 : kFewest)) break;
  }
  plan.staging_at = plan.stages * plan.stage_bytes;
  plan.barriers_at = plan.staging_at + kConsumers * kStagingBytes;
  plan.table_at = plan.barriers_at + 2 * 8 * 8;
  plan.shared_bytes = plan.table_at + table_bytes;
  return plan.stage_tiles > 0;
}

template <class D, TileSums kSums, bool kNarrow>
Status launch_wgmma_kind(cudaStream_t stream, const Problem& p, const LaunchChoice& choice) {
  using W = Widths<D::kFormat, kSums, kNarrow>;
  TilePlan plan{tile_grid<kTileRowTiles>(p, choice, W::kMost)};
  const int width = W::of(plan.block);
  plan.box_rows = p.offsets != nullptr ? kBoxRows : width;
  const int room = kNarrow ? half_of_shared(choice.device) : choice.device.shared_bytes;
  if (!lay_out<D>(plan, width, block_table_bytes(p, plan.block), room)) return tiles_do_not_fit(p, plan.block);
  QUIRE_TRY(const int64_t tiles, tile_bound(p, plan));
  constexpr int kResident = kNarrow ? 2 : 1;
  const int processors = choice.device.multiprocessors;
  const auto blocks = plan.dealt ? dealt_blocks(tiles / plan.k_slices, plan.k_slices, processors, kResident)
                                 : static_cast<int32_t>(std::min<int64_t>(kResident * processors, tiles));
  if (plan.dealt && !choice.sliced) {
    const int32_t flags = hand_over_flags(processors);
    plan.hand_over.flags = reinterpret_cast<uint32_t*>(choice.sums);
    plan.hand_over.sums = choice.sums + flags;
    plan.hand_over.fours = (kSums == TileSums::kTotals ? 2 : 1) * W::of(std::min(plan.block, p.rows)) / 8 * 128;
    QUIRE_CHECKED(launch_clear(stream, plan.hand_over.flags, flags));
  }
  QUIRE_TRY(const CUtensorMap x, cuda::tensor_map_bf16(p.x, p.rows, p.cols, p.x_stride * 2, plan.box_rows));
  auto* kernel = tile_kernel<D, kSums, false, kNarrow>;
  if constexpr (kSums != TileSums::kApart) {
    if (p.paired) kernel = tile_kernel<D, kSums, true, kNarrow>;
  }
  return cuda::launch(stream, "a product", kernel, dim3(static_cast<unsigned>(blocks)), kTileThreads, plan.shared_bytes,
                      p, plan, x);
}

template <TileFormat F, TileSums kSums>
Status launch_wgmma_tiles(cudaStream_t stream, const Problem& p, const LaunchChoice& choice) {
  if constexpr (kHasNarrow<Decoder<F>>) {
    if (choice.block_rows <= kNarrowRows) return launch_wgmma_kind<Decoder<F>, kSums, true>(stream, p, choice);
  }
  return launch_wgmma_kind<Decoder<F>, kSums, false>(stream, p, choice);
}

template <class D, TileKind kKind>
Status launch_mma_kind(cudaStream_t stream, const Problem& p, const LaunchChoice& choice) {
  using M = MmaTile<D, kKind>;
  const TileGrid grid = tile_grid<M::kRowTiles>(p, choice, M::kMost);
  const int shared = M::kTableAt + block_table_bytes(p, grid.block);
  if (shared > choice.device.shared_bytes) return tiles_do_not_fit(p, grid.block);
  QUIRE_TRY(const int64_t tiles, tile_bound(p, grid));
  const auto kernel = tile_mma_kernel<D, kKind>;
  QUIRE_CHECKED(cuda::allow_shared_memory(reinterpret_cast<const void*>(kernel), "a product", shared));
  int resident = 0;
  QUIRE_CHECKED(cuda::check(
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, kMmaThreads, static_cast<size_t>(shared)),
      "a product: occupancy"));
  const int64_t room = int64_t{choice.device.multiprocessors} * std::max(resident, 1);
  return cuda::launch(stream, "a product", kernel, dim3(static_cast<unsigned>(std::min(room, tiles))), kMmaThreads,
                      shared, p, grid);
}

template <TileFormat F, bool kKSlices>
Status launch_mma_tiles(cudaStream_t stream, const Problem& p, const LaunchChoice& choice) {
  using D = Decoder<F>;
  if constexpr (kHasNarrowTiles<D>) {
    if (choice.block_rows <= 32) return launch_mma_kind<D, TileKind::kNarrow>(stream, p, choice);
  }
  if constexpr (kHasWideTiles<D> && !kKSlices) {
    if (choice.block_rows > 128 && p.offsets == nullptr) return launch_mma_kind<D, TileKind::kWide>(stream, p, choice);
  }
  return launch_mma_kind < D, kKSlices ? TileKind::kKSlices : TileKind::kPlain > (stream, p, choice);
}

}  // namespace quire::gemm
