// The launch of K slices apart.
#pragma once

#include "core/cuda/launch.h"
#include "ops/gemm/cuda/k_slices.cuh"

namespace quire::gemm {

template <class D, int kGroups>
Status launch_k_slices_of(cudaStream_t stream, const Problem& p, const KSlicesPlan& plan) {
  const int32_t rows = plan.warps * 8 * kGroups;
  const dim3 grid(static_cast<unsigned>(p.all_row_tiles), static_cast<unsigned>(p.k_slices),
                  static_cast<unsigned>((p.rows + rows - 1) / rows));
  return cuda::launch(stream, "a product's K slices", k_slices_kernel<D, kGroups>, grid, plan.warps * 32,
                      plan.shared_bytes, p, plan);
}

template <TileFormat F>
Status launch_k_slices(cudaStream_t stream, const Problem& p, const cuda::DeviceLimits& device) {
  using D = Decoder<F>;
  const bool few = p.rows <= 8;
  const auto plan = plan_k_slices(p, D::kTileBytes, few ? 1 : 4, device.shared_bytes);
  if (!plan) return Error{Fault::kBug, fmt::format("K slices of {} column tiles do not fit", p.k_slice_tiles)};
  return few ? launch_k_slices_of<D, 1>(stream, p, *plan) : launch_k_slices_of<D, 4>(stream, p, *plan);
}

}  // namespace quire::gemm
