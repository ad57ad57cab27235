#include "ops/linear/cuda/linear.h"

#include <algorithm>

namespace quire::linear_cuda {
namespace {

// Calls f with each group of parts that shares a launch.
template <class F>
Status for_each_launch(const LinearParams& p, F&& f) {
  uint32_t done = 0;  // a bit for each part
  for (int32_t i = 0; i < p.part_count; ++i) {
    if ((done >> i & 1u) != 0) continue;
    gemm::GemmPart together[gemm::kMaxParts];
    int32_t count = 0;
    int64_t row_tiles = 0;
    for (int32_t j = i; j < p.part_count && count < gemm::kMaxParts; ++j) {
      if ((done >> j & 1u) != 0 || p.parts[i].weight.format != p.parts[j].weight.format) continue;
      together[count++] = p.parts[j];
      row_tiles += p.parts[j].weight.row_tiles();
      done |= 1u << j;
    }
    for (int32_t k = 0; k < count; ++k)
      if (gemm::PackedWeight& w = together[k].weight; w.segment == 0)
        w.segment = gemm::segment_cols(row_tiles, w.cols);
    gemm::GemmParams g;
    g.parts = together;
    g.part_count = count;
    g.x = p.x;
    g.x_stride = p.x_stride;
    g.rows = p.rows;
    g.path = p.path;
    g.sums = p.workspace;
    QUIRE_CHECKED(f(g));
  }
  return {};
}

}  // namespace

int64_t linear_workspace_bytes(const LinearParams& p) {
  int64_t floats = 0;
  (void)for_each_launch(p, [&](const gemm::GemmParams& g) {
    floats = std::max(floats, gemm::split_floats(g));
    return Status{};
  });
  return floats * static_cast<int64_t>(sizeof(float));
}

Status launch_linear(cudaStream_t stream, const LinearParams& p) {
  return for_each_launch(p,
                         [&](const gemm::GemmParams& g) { return launch_gemm(stream, g).context("linear"); });
}

}  // namespace quire::linear_cuda
