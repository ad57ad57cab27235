#include "ops/mlp/cuda/mlp.h"

#include <algorithm>

namespace quire::mlp_cuda {
namespace {

// Rows of the product are aligned to 16 bytes whatever F is.
int64_t inner_stride(int64_t inner) {
  return (inner + 7) / 8 * 8;
}

int64_t mid_bytes(const MlpParams& p) {
  return (p.rows * inner_stride(p.gate_up.rows) * 2 + 255) / 256 * 256;
}

gemm::GemmPart up_part(const MlpParams& p) {
  gemm::GemmPart up;
  up.weight = p.gate_up;
  up.scale = p.gate_scale;
  up.scale2 = p.up_scale;
  up.bias = p.gate_bias;
  up.bias2 = p.up_bias;
  up.y = p.workspace;
  up.y_stride = inner_stride(p.gate_up.rows);
  return up;
}
gemm::GemmPart down_part(const MlpParams& p) {
  gemm::GemmPart down;
  down.weight = p.down;
  down.scale = p.down_scale;
  down.bias = p.down_bias;
  down.y = p.x;
  down.y_stride = p.x_stride;
  down.out = p.add_to_x ? gemm::Out::kAddF32 : gemm::Out::kF32;
  return down;
}

gemm::GemmParams product(const MlpParams& p, const gemm::GemmPart& part) {
  gemm::GemmParams g;
  g.parts = &part;
  g.part_count = 1;
  g.rows = p.rows;
  g.path = p.path;
  return g;
}

}  // namespace

int64_t mlp_workspace_bytes(const MlpParams& p) {
  const gemm::GemmPart up = up_part(p), down = down_part(p);
  const int64_t floats = std::max(split_floats(product(p, up)), split_floats(product(p, down)));
  return mid_bytes(p) + floats * static_cast<int64_t>(sizeof(float));
}

Status launch_mlp(cudaStream_t stream, const MlpParams& p) {
  if (!p.gate_up.paired || p.down.paired || p.down.cols != p.gate_up.rows || p.down.rows != p.gate_up.cols)
    return Error{Fault::kBug, "swiglu_mlp: the shapes of gate, up and down do not fit each other"};
  const gemm::GemmPart up = up_part(p), down = down_part(p);
  auto* const sums = reinterpret_cast<float*>(p.workspace + mid_bytes(p));
  gemm::GemmParams g = product(p, up);
  if (g.path == gemm::Path::kSplit) g.path = gemm::Path::kTile;  // the second product's matter
  g.x = p.h;
  g.x_stride = p.h_stride;
  g.sums = sums;
  QUIRE_CHECKED(launch_gemm(stream, g).context("swiglu_mlp: gate and up"));

  g = product(p, down);
  g.x = reinterpret_cast<const __nv_bfloat16*>(p.workspace);
  g.x_stride = up.y_stride;
  g.sums = sums;
  return launch_gemm(stream, g).context("swiglu_mlp: down");
}

}  // namespace quire::mlp_cuda
