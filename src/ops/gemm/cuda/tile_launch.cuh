// How a tile kernel is laid out in shared memory, and its launch.
#pragma once

#include <algorithm>

#include "core/cuda/tensor_map.h"
#include "ops/gemm/cuda/launch.h"
#include "ops/gemm/cuda/tile.cuh"

namespace quire::gemm {

template <class D, bool kSegments>
Status launch_tile_kernel(cudaStream_t stream, const Problem& p, const LaunchChoice& choice) {
  TilePlan plan{};
  plan.block = std::min(choice.block_rows, Widths<D::kFormat, kSegments>::kMost);
  plan.splits = choice.split ? p.segments : 1;
  for (int i = 0; i < p.part_count; ++i)
    plan.row_blocks += (p.part[i].row_tiles + kTileRowTiles - 1) / kTileRowTiles;
  plan.weight_bytes = (kTileRowTiles * D::kTileBytes + 1023) / 1024 * 1024;
  plan.stage_bytes = plan.weight_bytes + Widths<D::kFormat, kSegments>::of(plan.block) * 128;
  const int table_bytes = block_table_bytes(p, plan.block);
  const int beside = kConsumers * kStagingBytes + 2 * 8 * 8 + table_bytes;
  plan.stages = std::min((choice.device.shared_bytes - beside) / plan.stage_bytes, 8);
  if (plan.stages < 2)
    return Error{Fault::kBug, fmt::format("tiles for {} rows and {} experts do not fit shared memory",
                                          plan.block, p.experts)};
  plan.staging_at = plan.stages * plan.stage_bytes;
  plan.barriers_at = plan.staging_at + kConsumers * kStagingBytes;
  plan.table_at = plan.barriers_at + 2 * 8 * 8;
  plan.shared_bytes = plan.table_at + table_bytes;
  const int64_t blocks = p.offsets != nullptr ? block_bound(p.rows, p.experts, plan.block)
                                              : (p.rows + plan.block - 1) / plan.block;
  if (blocks * plan.row_blocks * plan.splits >= INT32_MAX)
    return Error{Fault::kBug, "a product of more than 2^31 tiles"};
  const auto grid = static_cast<int>(std::min<int64_t>(
      choice.device.multiprocessors, std::max<int64_t>(blocks * plan.row_blocks * plan.splits, 1)));
  QUIRE_TRY(const CUtensorMap x, cuda::tensor_map_bf16(p.x, p.rows, p.cols, p.x_stride * 2, kBoxRows));
  return cuda::launch(stream, "a product", tile_kernel<D, kSegments>, dim3(static_cast<unsigned>(grid)),
                      kTileThreads, plan.shared_bytes, p, plan, x);
}

template <TileFormat F>
Status launch_tile(cudaStream_t stream, const Problem& p, const LaunchChoice& choice) {
  if (p.segments > 1 && !choice.split) return launch_tile_kernel<Decoder<F>, true>(stream, p, choice);
  return launch_tile_kernel<Decoder<F>, false>(stream, p, choice);
}

}  // namespace quire::gemm
