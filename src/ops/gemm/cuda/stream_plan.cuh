// How a stream kernel is laid out in shared memory.
#pragma once

#include <algorithm>

#include "ops/gemm/cuda/launch.h"
#include "ops/gemm/cuda/stream.cuh"

namespace quire::gemm {

// Whole rows of x stay in shared memory if this leaves the rings enough.
inline int64_t most_resident(const cuda::DeviceLimits& device) {
  return int64_t{device.shared_bytes} * 59 / 100;
}

inline int64_t stream_row_blocks(const Problem& p, int block) {
  return p.offsets != nullptr ? block_bound(p.rows, p.experts, block) : (p.rows + block - 1) / block;
}
inline int64_t stream_units(const Problem& p, const LaunchChoice& choice) {
  return stream_row_blocks(p, choice.block_rows) * p.all_row_tiles;
}

// Rings take what shared memory is left; three quarters of the weights' bytes of a ring are
// in flight, which must cover bandwidth times latency: about 32 KB on each multiprocessor.
inline Result<StreamPlan> plan_stream(const Problem& p, const LaunchChoice& choice, int tile_bytes, int most_warps) {
  StreamPlan plan{};
  plan.x_rows = std::min(choice.block_rows, std::max(p.most_rows, 1));
  const int table_bytes = block_table_bytes(p, choice.block_rows);
  const int64_t each = (stream_units(p, choice) + choice.device.multiprocessors - 1) / choice.device.multiprocessors;
  const auto pitch = [](int tiles) { return tiles * 128 + 16; };
  const int buffers = stream_row_blocks(p, choice.block_rows) > 1 ? 2 : 1;
  const int64_t x_bytes = int64_t{buffers} * plan.x_rows * pitch(p.col_tiles);
  for (const bool resident : {true, false}) {
    if (resident && x_bytes > most_resident(choice.device)) continue;
    int team = 1;
    while (team < most_warps && team * 2 <= p.k_slices) team *= 2;
    // Fewer warps have longer stages: no more than find work.
    const auto busy = static_cast<int>(std::clamp<int64_t>(each * team, std::min(4, most_warps), most_warps));
    for (plan.warps = busy / team * team; plan.warps >= 1; plan.warps /= 2) {
      for (plan.team = team; plan.warps % plan.team != 0;) plan.team /= 2;
      const int sum_bytes = p.k_slices == 1 ? 0 : plan.warps / plan.team * 2 * p.k_slices * 16 * choice.block_rows * 4;
      const int barriers = stream_barrier_bytes(plan.warps);
      const int64_t rings =
          choice.device.shared_bytes - table_bytes - sum_bytes - barriers - (resident ? x_bytes : 0) - 64;
      const auto stage = [&](int tiles) {
        return (tiles * tile_bytes + (resident ? 0 : plan.x_rows * pitch(tiles)) + 15) / 16 * 16;
      };
      const auto fits = [&](int tiles) { return int64_t{plan.warps} * kStages * stage(tiles) <= rings; };
      if (!fits(1)) continue;
      plan.chunk_tiles = 8;
      while (plan.chunk_tiles > 1 && (!fits(plan.chunk_tiles) || p.k_slice_tiles % plan.chunk_tiles != 0))
        plan.chunk_tiles /= 2;
      plan.x_buffers = resident ? buffers : 0;
      plan.x_pitch = pitch(resident ? p.col_tiles : plan.chunk_tiles);
      plan.stage_bytes = stage(plan.chunk_tiles);
      plan.x_at = plan.warps * kStages * plan.stage_bytes;
      plan.sums_at = plan.x_at + static_cast<int>(resident ? x_bytes : 0);
      plan.barriers_at = plan.sums_at + sum_bytes;
      plan.table_at = plan.barriers_at + barriers;
      plan.shared_bytes = plan.table_at + table_bytes;
      return plan;
    }
  }
  return Error{Fault::kBug, fmt::format("a product with {} K slices and {} experts does not fit shared memory",
                                        p.k_slices, p.experts)};
}

}  // namespace quire::gemm
