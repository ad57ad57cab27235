#include "ops/linear/cuda/linear.h"

#include <vector>

namespace quire::linear_cuda {
namespace {

bool share_a_launch(const gemm::PackedWeight& a, const gemm::PackedWeight& b) {
  return a.format == b.format && a.segment_columns() == b.segment_columns();
}

}  // namespace

Status launch_linear(cudaStream_t stream, const LinearParams& p) {
  std::vector<bool> done(static_cast<size_t>(p.part_count));
  for (int32_t i = 0; i < p.part_count; ++i) {
    if (done[static_cast<size_t>(i)]) continue;
    gemm::GemmPart together[gemm::kMaxParts];
    int32_t count = 0;
    for (int32_t j = i; j < p.part_count && count < gemm::kMaxParts; ++j) {
      if (done[static_cast<size_t>(j)] || !share_a_launch(p.parts[i].weight, p.parts[j].weight)) continue;
      together[count++] = p.parts[j];
      done[static_cast<size_t>(j)] = true;
    }
    gemm::GemmParams g;
    g.parts = together;
    g.part_count = count;
    g.x = p.x;
    g.x_stride = p.x_stride;
    g.rows = p.rows;
    g.path = p.path;
    g.overlap = p.overlap;
    QUIRE_CHECKED(launch_gemm(stream, g).context("linear"));
  }
  return {};
}

}  // namespace quire::linear_cuda
