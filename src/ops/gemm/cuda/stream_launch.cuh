// The launch of a stream kernel.
#pragma once

#include <algorithm>

#include "ops/gemm/cuda/stream_plan.cuh"

namespace quire::gemm {

template <class D, int kGroups>
Status launch_stream_plan(cudaStream_t stream, const Problem& p, const LaunchChoice& choice, const StreamPlan& plan) {
  // Grouped: how many blocks of rows there are is known on the device only.
  const int64_t units = stream_units(p, choice);
  if (units >= INT32_MAX) return Error{Fault::kBug, "a product of more than 2^31 units"};
  const auto grid = std::min<int64_t>(choice.device.multiprocessors, std::max<int64_t>(units, 1));
  return cuda::launch(stream, "a product", stream_kernel<D, kGroups>, dim3(static_cast<unsigned>(grid)),
                      plan.warps * 32, plan.shared_bytes, p, plan);
}

template <TileFormat F>
Status launch_stream(cudaStream_t stream, const Problem& p, const LaunchChoice& choice) {
  using D = Decoder<F>;
  LaunchChoice fitting = choice;
  if (choice.block_rows == 32) {
    const auto plan = plan_stream(p, choice, D::kTileBytes, kStreamThreads<D> / 32);
    if (plan.ok()) return launch_stream_plan<D, 4>(stream, p, choice, *plan);
    fitting.block_rows = 8;  // the sums of many K slices take less room
  }
  QUIRE_TRY(const StreamPlan plan, plan_stream(p, fitting, D::kTileBytes, kStreamThreads<D> / 32));
  return launch_stream_plan<D, 1>(stream, p, fitting, plan);
}

}  // namespace quire::gemm
