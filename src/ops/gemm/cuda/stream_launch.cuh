// How a stream kernel is laid out in shared memory, and its launch.
#pragma once

#include <algorithm>

#include "ops/gemm/cuda/launch.h"
#include "ops/gemm/cuda/stream.cuh"

namespace quire::gemm {

// x stays in shared memory if this leaves the rings enough.
inline constexpr int kMostResident = 132 << 10;

// Rings take what shared memory is left; three quarters of the weights' bytes of a ring are
// in flight, which must cover bandwidth times latency: about 32 KB on each multiprocessor.
inline Result<StreamPlan> plan_stream(const Problem& p, const LaunchChoice& choice, int tile_bytes,
                                      int most_warps) {
  StreamPlan plan{};
  plan.split = choice.split;
  plan.x_rows = std::min(choice.block_rows, std::max(p.most_rows, 1));
  const int segments = choice.split ? 1 : p.segments;  // that a unit has
  const int table_bytes = block_table_bytes(p, choice.block_rows);
  const int x_bytes = p.col_tiles * plan.x_rows * 128;
  for (const bool resident : {true, false}) {
    if (resident && (p.offsets != nullptr || p.rows > choice.block_rows || x_bytes > kMostResident)) continue;
    const int tile = tile_bytes + (resident ? 0 : plan.x_rows * 128);
    for (plan.warps = most_warps; plan.warps >= 1; plan.warps /= 2) {
      plan.team = 1;
      while (plan.team < plan.warps && plan.team * 2 <= segments) plan.team *= 2;
      const int sum_bytes =
          segments == 1 ? 0 : plan.warps / plan.team * 2 * segments * 16 * choice.block_rows * 4;
      const int rings = choice.device.shared_bytes - table_bytes - sum_bytes - (resident ? x_bytes : 0) - 16;
      const auto fits = [&](int tiles) { return plan.warps * kStages * tiles * tile <= rings; };
      if (!fits(1)) continue;
      plan.chunk_tiles = 8;
      while (plan.chunk_tiles > 1 && (!fits(plan.chunk_tiles) || p.segment_tiles % plan.chunk_tiles != 0))
        plan.chunk_tiles /= 2;
      plan.resident = resident;
      plan.stage_bytes = plan.chunk_tiles * tile;
      plan.x_at = plan.warps * kStages * plan.stage_bytes;
      plan.sums_at = plan.x_at + (resident ? x_bytes : 0);
      plan.table_at = plan.sums_at + sum_bytes;
      plan.shared_bytes = plan.table_at + table_bytes;
      return plan;
    }
  }
  return Error{Fault::kBug,
               fmt::format("a product with {} segments and {} experts does not fit shared memory", p.segments,
                           p.experts)};
}

template <class D, int kGroups>
Status launch_stream_groups(cudaStream_t stream, const Problem& p, const LaunchChoice& choice) {
  QUIRE_TRY(const StreamPlan plan, plan_stream(p, choice, D::kTileBytes, kStreamThreads<D> / 32));
  // Grouped: how many blocks of rows there are is known on the device only.
  const int64_t blocks = p.offsets != nullptr ? block_bound(p.rows, p.experts, 8 * kGroups)
                                              : (p.rows + 8 * kGroups - 1) / (8 * kGroups);
  const int64_t units = blocks * p.all_row_tiles * (plan.split ? p.segments : 1);
  if (units >= INT32_MAX) return Error{Fault::kBug, "a product of more than 2^31 units"};
  const auto grid =
      static_cast<int>(std::min<int64_t>(choice.device.multiprocessors, std::max<int64_t>(units, 1)));
  return launch_kernel(stream, stream_kernel<D, kGroups>, grid, plan.warps * 32, plan.shared_bytes,
                       choice.overlap, p, plan);
}

template <TileFormat F>
Status launch_stream(cudaStream_t stream, const Problem& p, const LaunchChoice& choice) {
  if (choice.block_rows == 8) return launch_stream_groups<Decoder<F>, 1>(stream, p, choice);
  return launch_stream_groups<Decoder<F>, 4>(stream, p, choice);
}

}  // namespace quire::gemm
