// The launch of a sweep.
#pragma once

#include <algorithm>
#include <optional>

#include "ops/gemm/cuda/sweep_plan.cuh"

namespace quire::gemm {

template <class D, int kGroups>
Result<bool> launch_sweep_groups(cudaStream_t stream, const Problem& p, const LaunchChoice& choice) {
  const std::optional<SweepPlan> plan = plan_sweep(p, choice, D::kTileBytes, kSweepWarps<D>);
  if (!plan) return false;
  const auto grid = std::min(choice.device.multiprocessors, p.all_row_tiles);
  QUIRE_CHECKED(cuda::launch(stream, "a product", sweep_kernel<D, kGroups>, dim3(static_cast<unsigned>(grid)),
                             (plan->warps + 1) * 32, plan->shared_bytes, p, *plan));
  return true;
}

template <TileFormat F>
Result<bool> launch_sweep(cudaStream_t stream, const Problem& p, const LaunchChoice& choice) {
  if (choice.block_rows == 8) return launch_sweep_groups<Decoder<F>, 1>(stream, p, choice);
  return launch_sweep_groups<Decoder<F>, 4>(stream, p, choice);
}

}  // namespace quire::gemm
