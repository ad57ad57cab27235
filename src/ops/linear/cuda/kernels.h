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

// Tokens that are rounded beside such weights (ops/gemm/cuda/rounded.h).
bool fits_rounded(const Machine& m, const LinearArgs& a, TokenRounding tokens);
void launch_rounded(const OpContext& ctx, const LinearArgs& a, TokenRounding tokens);

template <TokenRounding kTokens>
struct RoundedEntry {
  static bool fits(const Machine& m, const LinearArgs& a) { return fits_rounded(m, a, kTokens); }
  static void launch(const OpContext& ctx, const LinearArgs& a) { launch_rounded(ctx, a, kTokens); }
};

template <gemm::Path kPath>
struct Entry {
  static bool fits(const Machine& m, const LinearArgs& a) { return linear_cuda::fits(m, a, kPath); }
  static bool prefers(const Machine& m, const LinearArgs& a) { return linear_cuda::prefers(m, a, kPath); }
  static void launch(const OpContext& ctx, const LinearArgs& a) { linear_cuda::launch(ctx, a, kPath); }
};

}  // namespace quire::linear_cuda
