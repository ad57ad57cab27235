// linear on a GPU: several packed matrices over one input. The contract is that of ops/linear/linear.h.
#pragma once

#include "ops/gemm/cuda/gemm.h"

namespace quire::linear_cuda {

// x  [rows, K]  bf16, device, rows aligned to 16 bytes, x_stride a multiple of 8
// parts: GemmPart says where each goes (bf16, float32, or added to float32) and its scale and bias; not paired. Parts of one
//   format share a launch, and K is cut by the rows of all of them; others follow in the order given. No two parts write
//   the same y.
// Weights must be bf16-exact or are rounded once (gemm/cuda/decode.cuh). Row r of y depends on row r of x alone, bit for bit.
struct LinearParams {
  const __nv_bfloat16* x = nullptr;
  int64_t x_stride = 0;
  int32_t rows = 0;
  const gemm::GemmPart* parts = nullptr;  // host
  int32_t part_count = 0;
  float* workspace = nullptr;  // device, linear_workspace_bytes(), aligned to 256 bytes
  gemm::Path path = gemm::Path::kAuto;
};

// Sums of segments, where a product's segments are multiplied apart; never less for more rows.
int64_t linear_workspace_bytes(const LinearParams& p);
// Enqueues.
Status launch_linear(cudaStream_t stream, const LinearParams& p);

}  // namespace quire::linear_cuda
