// How a sweep is laid out in shared memory.
#pragma once

#include <algorithm>
#include <optional>

#include "ops/gemm/cuda/launch.h"
#include "ops/gemm/cuda/sweep.cuh"

namespace quire::gemm {

// Fills in what follows from the warps, the piece, the group, the slots and the chunk.
inline void lay_out(SweepPlan& plan, const Problem& p, int tile_bytes, int block_rows) {
  const int sum_bytes = plan.group * 16 * block_rows * 4;
  plan.pieces = (p.col_tiles + plan.piece_tiles - 1) / plan.piece_tiles;
  plan.x_rows = p.rows;
  plan.x_pitch = plan.piece_tiles * 128 + 16;
  plan.slot_bytes = plan.x_rows * plan.x_pitch;
  plan.stage_bytes = plan.chunk_tiles * tile_bytes;
  plan.x_at = plan.warps * kSweepStages * plan.stage_bytes;
  plan.sums_at = plan.x_at + plan.x_slots * plan.slot_bytes;
  plan.totals_at = plan.sums_at + (p.k_slice_tiles > plan.piece_tiles ? sum_bytes : 0);
  plan.barriers_at = plan.totals_at + (p.k_slices > 1 ? sum_bytes : 0);
  plan.done_at = plan.barriers_at + sweep_barrier_bytes(plan.warps, plan.x_slots);
  plan.shared_bytes = plan.done_at + plan.group * 4;
}

// Nothing where the problem is none for a sweep: experts, more than one block of rows, too little shared memory, or row
// tiles too few for warps that hand their sums on (a piece waits for the one before it).
inline std::optional<SweepPlan> plan_sweep(const Problem& p, const LaunchChoice& choice, int tile_bytes,
                                           int most_warps) {
  if (p.offsets != nullptr || p.rows > choice.block_rows) return {};
  const int units = (p.all_row_tiles + choice.device.multiprocessors - 1) / choice.device.multiprocessors;
  SweepPlan plan{};
  for (plan.warps = most_warps; plan.warps >= (choice.forced ? 1 : most_warps); plan.warps /= 2)
    for (plan.piece_tiles = 8; plan.piece_tiles >= (choice.forced ? 1 : 4); plan.piece_tiles /= 2) {
      if (p.k_slice_tiles % plan.piece_tiles != 0) continue;
      const bool hands_on = p.k_slice_tiles > plan.piece_tiles;
      for (int groups = 1; groups <= units; ++groups) {
        plan.group = (units + groups - 1) / groups;
        if (hands_on && plan.group < plan.warps && !choice.forced) break;
        // What the warps are at, and as much again, which is on its way; less where there is no room for it.
        const int under_way = (plan.warps + plan.group - 1) / plan.group;
        for (plan.x_slots = 2 * under_way + 2; plan.x_slots >= (choice.forced ? 2 : under_way + 2); --plan.x_slots)
          for (plan.chunk_tiles = plan.piece_tiles; plan.chunk_tiles >= (choice.forced ? 1 : 2);
               plan.chunk_tiles /= 2) {
            lay_out(plan, p, tile_bytes, choice.block_rows);
            if (plan.shared_bytes <= choice.device.shared_bytes) return plan;
          }
      }
    }
  return {};
}

}  // namespace quire::gemm
