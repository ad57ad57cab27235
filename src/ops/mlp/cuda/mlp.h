// swiglu_mlp on a GPU: x += W_down (SiLU(W_gate h) * (W_up h)). The contract is that of ops/mlp/mlp.h.
#pragma once

#include "ops/gemm/cuda/gemm.h"

namespace quire::mlp_cuda {

// h  [rows, D]  bf16, device, rows aligned to 16 bytes, h_stride a multiple of 8
// gate_up   paired weight [F, D], down  [D, F]; each with its scale; biases float32 or null
// x  [rows, D]  float32, device: residual stream, added to, or overwritten if not add_to_x
// workspace  mlp_workspace_bytes, aligned to 256 bytes: SiLU(g) * u in bf16, and sums of segments of the second product
struct MlpParams {
  const __nv_bfloat16* h = nullptr;
  int64_t h_stride = 0;
  int32_t rows = 0;
  gemm::PackedWeight gate_up, down;
  const float *gate_scale = nullptr, *up_scale = nullptr, *down_scale = nullptr;
  const float *gate_bias = nullptr, *up_bias = nullptr, *down_bias = nullptr;
  float* x = nullptr;
  int64_t x_stride = 0;
  bool add_to_x = true;
  std::byte* workspace = nullptr;
  gemm::Path path = gemm::Path::kAuto;
};

// Looks at the weights' shapes and the rows; never less for more rows.
int64_t mlp_workspace_bytes(const MlpParams& p);
// Enqueues two kernels. Fault::kBug for shapes that do not fit.
Status launch_mlp(cudaStream_t stream, const MlpParams& p);

}  // namespace quire::mlp_cuda
