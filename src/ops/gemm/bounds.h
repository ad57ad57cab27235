// Error bounds of matrix products for the conformance suites, derived from the arithmetic.
#pragma once

#include <string_view>
#include <vector>

#include "ops/gemm/activation.h"
#include "ops/op.h"

namespace quire::conformance {

// The one of a GPU whose tokens become E4M3.
inline constexpr std::string_view kE4m3Kernel = "cuda_e4m3";
// Whether it computes such calls: they have bits of their own, and other kernels take them as if they were none.
inline bool takes_e4m3(std::string_view kernel) {
  return kernel == kE4m3Kernel || kernel == "reference";
}
// Whether it is one of the integer cores, which read repacked weights too.
bool takes_integers(std::string_view kernel);
// The relative error of a weight in a kernel: one rounding to bf16 in the bf16 kernels unless the format
// fits. On a GPU F16 and F32 are exact sums of several bf16.
double weight_eps(std::string_view kernel, DType type);
// The relative error of a sum over K in float32: a CPU's kernel has at least 8 accumulators; a tensor core adds 16
// products at a time to one, and keeps at least 2^-22 of the largest of these terms.
double sum_eps(std::string_view kernel, int64_t cols);

// A value in float64 and how far a kernel's may be from it.
struct Bounded {
  double value = 0.0;
  double error = 0.0;
};
// scale * W x; `w` are the decoded values [rows, cols]. The integer kernel's rounding of the tokens counts. `e4m3`:
// beside FP8 weights tokens count as what they become in E4M3 (gemm/e4m3_tokens.h).
std::vector<Bounded> bounded_product(const float* w, const Weight& like, int64_t expert,
                                     const std::vector<Bounded>& tokens, std::string_view kernel, bool e4m3 = false);
// gated(gate, up), rounded to `type`.
std::vector<Bounded> bounded_gated(GateActivation activation, const std::vector<Bounded>& gate,
                                   const std::vector<Bounded>& up, DType type);
// Sums with a bias that is added to them in float32.
std::vector<Bounded> with_bias(std::vector<Bounded> sums, const float* bias);
// The exact values of a row.
std::vector<Bounded> exact(const float* x, int64_t n);

}  // namespace quire::conformance
