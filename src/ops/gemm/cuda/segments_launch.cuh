// The launch of segments apart.
#pragma once

#include "core/cuda/launch.h"
#include "ops/gemm/cuda/segments.cuh"

namespace quire::gemm {

template <class D, int kGroups>
Status launch_segments_of(cudaStream_t stream, const Problem& p, const SegmentsPlan& plan) {
  const int32_t rows = plan.warps * 8 * kGroups;
  const dim3 grid(static_cast<unsigned>(p.all_row_tiles), static_cast<unsigned>(p.segments),
                  static_cast<unsigned>((p.rows + rows - 1) / rows));
  return cuda::launch(stream, "a product's segments", segments_kernel<D, kGroups>, grid, plan.warps * 32,
                      plan.shared_bytes, p, plan);
}

template <TileFormat F>
Status launch_segments(cudaStream_t stream, const Problem& p, const cuda::DeviceLimits& device) {
  using D = Decoder<F>;
  const bool few = p.rows <= 8;
  const auto plan = plan_segments(p, D::kTileBytes, few ? 1 : 4, device.shared_bytes);
  if (!plan) return Error{Fault::kBug, fmt::format("segments of {} column tiles do not fit", p.segment_tiles)};
  return few ? launch_segments_of<D, 1>(stream, p, *plan) : launch_segments_of<D, 4>(stream, p, *plan);
}

}  // namespace quire::gemm
