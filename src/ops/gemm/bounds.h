// Error bounds of matrix products for the conformance suites, derived from the arithmetic.
#pragma once

#include <string_view>
#include <vector>

#include "ops/gemm/activation.h"
#include "ops/gemm/token_rounding.h"
#include "ops/op.h"

namespace quire::conformance {

// Those of a GPU whose tokens are rounded.
inline constexpr std::string_view kE4m3Kernel = "cuda_e4m3", kFp4Kernel = "cuda_fp4";
// Whether it computes such calls: they have bits of their own, and other kernels take them as if they were none.
inline bool computes(std::string_view kernel, TokenRounding tokens) {
  return tokens == TokenRounding::kNone || kernel == "reference" ||
         kernel == (tokens == TokenRounding::kE4m3 ? kE4m3Kernel : kFp4Kernel);
}
// Of a case's name.
inline std::string_view case_note(TokenRounding tokens) {
  return tokens == TokenRounding::kE4m3 ? " e4m3" : tokens == TokenRounding::kFp4 ? " fp4" : "";
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
// scale * W x; `w` are the decoded values [rows, cols]. The integer kernel's rounding of the tokens counts, and what
// they become beside weights of the types that `rounded` is for.
std::vector<Bounded> bounded_product(const float* w, const Weight& like, int64_t expert,
                                     const std::vector<Bounded>& tokens, std::string_view kernel,
                                     TokenRounding rounded = TokenRounding::kNone);
// gated(gate, up), rounded to `type`.
std::vector<Bounded> bounded_gated(GateActivation activation, const std::vector<Bounded>& gate,
                                   const std::vector<Bounded>& up, DType type);
// Sums with a bias that is added to them in float32.
std::vector<Bounded> with_bias(std::vector<Bounded> sums, const float* bias);
// The exact values of a row.
std::vector<Bounded> exact(const float* x, int64_t n);

}  // namespace quire::conformance
