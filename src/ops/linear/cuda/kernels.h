// The CUDA kernels in linear's table: a launch for parts of one format.
#pragma once

#include "ops/gemm/cuda/paths.h"
#include "ops/linear/linear.h"

namespace quire::linear_cuda {

// Weights must be bf16-exact or are rounded once (gemm/cuda/decode.cuh). K is cut by the rows of all parts.
bool fits(const Machine& m, const LinearArgs& a, gemm::Path path);
// Whether the path is expected to be the fastest.
bool prefers(const Machine& m, const LinearArgs& a, gemm::Path path);
void launch(const OpContext& ctx, const LinearArgs& a, gemm::Path path);

// FP8 weights and tokens that become E4M3 (ops/gemm/cuda/e4m3.h).
bool fits_e4m3(const Machine& m, const LinearArgs& a);
void launch_e4m3(const OpContext& ctx, const LinearArgs& a);

template <gemm::Path kPath>
struct Entry {
  static bool fits(const Machine& m, const LinearArgs& a) { return linear_cuda::fits(m, a, kPath); }
  static bool prefers(const Machine& m, const LinearArgs& a) { return linear_cuda::prefers(m, a, kPath); }
  static void launch(const OpContext& ctx, const LinearArgs& a) { linear_cuda::launch(ctx, a, kPath); }
};

}  // namespace quire::linear_cuda
