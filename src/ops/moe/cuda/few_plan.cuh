// How the kernel of few.h lies in shared memory.
#pragma once

#include <algorithm>
#include <optional>
#include <type_traits>

#include "ops/moe/cuda/few.h"

namespace quire::moe_cuda {

inline constexpr int kFewStages = 4, kFewWarps = 16;

// What every block finds out by itself, in shared memory.
struct Routes {
  uint16_t* choice;   // [rows * top_k, rounded up to a multiple of 8]
  uint32_t* present;  // [experts / 32]: a bit for each expert that anybody chose
  float* weights;     // [rows, results]
  // Experts that were chosen, ascending, the shared one last: group g has positions [begin[g], begin[g + 1]).
  int32_t *expert, *begin;
  int32_t *token, *slot;  // by position: whose row it is, and token * results + rank
  int32_t* groups;
  // By group, of its expert: of gate, up and down. On their way when sort() ends.
  float *gate_scale, *up_scale, *down_scale;

  __host__ __device__ static int32_t positions(const Routing& r) {
    return r.rows * (r.top_k + (r.shared_sorted ? 1 : 0));
  }
  // Returns how many bytes they take, a multiple of 16.
  __host__ __device__ int32_t lay_out(const Routing& r, uint8_t* base) {
    int32_t bytes = 0;
    const auto take = [&](auto*& to, int32_t count) {
      to = reinterpret_cast<std::remove_reference_t<decltype(to)>>(base + bytes);
      bytes += (count * static_cast<int32_t>(sizeof(*to)) + 15) / 16 * 16;
    };
    const int32_t all = positions(r);
    take(choice, (r.rows * r.top_k + 7) / 8 * 8);
    take(present, kFewExperts / 32);
    take(weights, r.rows * r.results);
    take(expert, all);
    take(begin, all + 1);
    take(token, all);
    take(slot, all);
    take(groups, 1);
    take(gate_scale, all);
    take(up_scale, all);
    take(down_scale, all);
    return bytes;
  }
};

// No more warps than find work, and as long stages as there is room for.
inline std::optional<FewPlan> plan_few(const FewRows& f, const cuda::DeviceLimits& device, int up_bytes,
                                       int down_bytes) {
  const Routing& r = f.routing;
  const int32_t blocks = device.multiprocessors;
  FewPlan plan{};
  // Rings have room for the keys of experts.
  static_assert(4 * kFewStages * 2 * gemm::tile_bytes(gemm::TileFormat::kMxfp4) >= kFewRows * kFewExperts * 4);
  plan.h_pitch = f.up.col_tiles * 128 + 16;
  plan.mid_pitch = f.down.col_tiles * 128 + 16;
  plan.row_tiles = (f.down.row_tiles + blocks - 1) / blocks;
  const int64_t rows_bytes = std::max(int64_t{r.rows} * plan.h_pitch, int64_t{Routes::positions(r)} * plan.mid_pitch);
  const int64_t results_bytes = int64_t{plan.row_tiles} * r.rows * r.results * 32;
  const int64_t most = int64_t{Routes::positions(r)} * std::max(f.up.row_tiles, f.down.row_tiles);
  if (rows_bytes + results_bytes > device.shared_bytes || most * (blocks + 1) > UINT32_MAX) return {};
  const auto work = static_cast<int32_t>((most + blocks - 1) / blocks);
  for (plan.warps = std::clamp(work, 4, kFewWarps); plan.warps >= 4; plan.warps -= 2)
    for (plan.chunk_tiles = 8; plan.chunk_tiles >= 2; plan.chunk_tiles /= 2) {
      if (f.up.k_slice_tiles % plan.chunk_tiles != 0 || f.down.k_slice_tiles % plan.chunk_tiles != 0) continue;
      plan.stage_bytes = plan.chunk_tiles * std::max(up_bytes, down_bytes);
      plan.rows_at = plan.warps * kFewStages * plan.stage_bytes;
      plan.routes_at = plan.rows_at + static_cast<int32_t>(rows_bytes);
      plan.results_at = plan.routes_at + Routes{}.lay_out(r, nullptr);
      plan.barriers_at = plan.results_at + static_cast<int32_t>(results_bytes);
      plan.shared_bytes = plan.barriers_at + plan.warps * kFewStages * 8;
      if (plan.shared_bytes <= device.shared_bytes) return plan;
    }
  return {};
}

}  // namespace quire::moe_cuda
