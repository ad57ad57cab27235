// The CUDA kernels in swiglu_mlp's table: two products, of gate and up in one, and of down.
#pragma once

#include "ops/gemm/cuda/paths.h"
#include "ops/mlp/mlp.h"

namespace quire::mlp_cuda {

// Both products by this path; kAuto: each by the one that is expected to be its fastest. What cannot be sliced (gate
// and up) is computed in whole tiles where kSliced is asked for.
bool fits(const Machine& m, const MlpArgs& a, gemm::Path path);
void launch(const OpContext& ctx, const MlpArgs& a, gemm::Path path);

// Both products, or the one of such weights, of tokens that are rounded beside them (ops/gemm/cuda/rounded.h).
bool fits_rounded(const Machine& m, const MlpArgs& a, TokenRounding tokens);
void launch_rounded(const OpContext& ctx, const MlpArgs& a, TokenRounding tokens);

template <TokenRounding kTokens>
struct RoundedEntry {
  static bool fits(const Machine& m, const MlpArgs& a) { return fits_rounded(m, a, kTokens); }
  static void launch(const OpContext& ctx, const MlpArgs& a) { launch_rounded(ctx, a, kTokens); }
};

inline bool fits_any(const Machine& m, const MlpArgs& a) {
  return fits(m, a, gemm::Path::kAuto);
}
inline void launch_any(const OpContext& ctx, const MlpArgs& a) {
  launch(ctx, a, gemm::Path::kAuto);
}

template <gemm::Path kPath>
struct Entry {
  static bool fits(const Machine& m, const MlpArgs& a) { return mlp_cuda::fits(m, a, kPath); }
  static bool prefers(const Machine&, const MlpArgs&) {
    return false;
  }  // for both products: only where it is asked for
  static void launch(const OpContext& ctx, const MlpArgs& a) { mlp_cuda::launch(ctx, a, kPath); }
};

inline constexpr std::string_view kTakes = "bf16, gate and up of one type, widths that are multiples of 8";

inline constexpr std::string_view kE4m3Takes =
    "FP8 weights, tokens that become E4M3, gate and up of one type, widths that are multiples of 8, compute capability "
    "9.0";
inline constexpr std::string_view kFp4Takes =
    "NVFP4 or MXFP4 weights, tokens that become FP4, gate and up of one type, widths that are multiples of 8, compute "
    "capability 12.x";

}  // namespace quire::mlp_cuda
