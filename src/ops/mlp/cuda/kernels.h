// The CUDA kernels in swiglu_mlp's table: two products, of gate and up in one, and of down.
#pragma once

#include "ops/gemm/cuda/paths.h"
#include "ops/mlp/mlp.h"

namespace quire::mlp_cuda {

// Both products by this path; kAuto: each by the one that is expected to be its fastest. What cannot be sliced (gate
// and up) is computed in whole tiles where kSliced is asked for.
bool fits(const Machine& m, const MlpArgs& a, gemm::Path path);
void launch(const OpContext& ctx, const MlpArgs& a, gemm::Path path);

// Both products, or the one whose weights are FP8, of tokens that become E4M3 (ops/gemm/cuda/e4m3.h).
bool fits_e4m3(const Machine& m, const MlpArgs& a);
void launch_e4m3(const OpContext& ctx, const MlpArgs& a);

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

}  // namespace quire::mlp_cuda
