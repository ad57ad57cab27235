#include "ops/gemm/bounds.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "ops/conformance/conformance.h"

namespace quire::conformance {

bool takes_integers(std::string_view kernel) {
  return kernel.starts_with("integer");
}

double weight_eps(std::string_view kernel, DType type) {
  const bool fits_bf16 = type == DType::kBF16 || type == DType::kMXFP4 || type == DType::kNVFP4;
  if (kernel == "avx2" || kernel == "reference") return 0.0;
  if (takes_integers(kernel)) return 4 * kEpsF32;  // the product of both scales, and each of them
  if (fits_bf16) return 0.0;
  if (Suite::is_on_gpu(kernel)) return type == DType::kF16 || type == DType::kF32 ? 0.0 : kEpsBf16;
  if (kernel != "amx") return kEpsBf16;
  // With AMX, products of a code and a scale pass through half precision; for Q6_K the scale itself does too.
  if (type == DType::kQ8_0 || type == DType::kQ4_0 || type == DType::kQ5_0) return kEpsBf16 + kEpsF16;
  return type == DType::kQ6_K ? kEpsBf16 + 2 * kEpsF16 : kEpsBf16;
}

double sum_eps(std::string_view kernel, int64_t cols) {
  const double a_step = Suite::is_on_gpu(kernel) ? 2.0 : 1.0;
  return (a_step * static_cast<double>(cols) / 16.0 + 16.0) * kEpsF32;
}

namespace {

// The integer kernels round a token to 1/1016 of the largest of each 32; one below 2^-116 becomes zero.
std::vector<Bounded> as_integers(std::vector<Bounded> x) {
  for (size_t first = 0; first < x.size(); first += 32) {
    const std::span<Bounded> group = std::span(x).subspan(first, std::min<size_t>(32, x.size() - first));
    double largest = 0.0;
    for (const Bounded& v : group) largest = std::max(largest, std::abs(v.value) + v.error);
    for (Bounded& v : group) v.error += largest * (1.0 / 2032 + 4 * kEpsF32) + 0x1p-116;
  }
  return x;
}

}  // namespace

std::vector<Bounded> bounded_product(const float* w, const Weight& like, int64_t expert,
                                     const std::vector<Bounded>& tokens, std::string_view kernel) {
  const std::vector<Bounded> x = takes_integers(kernel) ? as_integers(tokens) : tokens;
  const double scale = static_cast<double>(like.scale_of(expert));
  const double eps = weight_eps(kernel, like.dtype) + sum_eps(kernel, like.cols);
  std::vector<Bounded> y(static_cast<size_t>(like.rows));
  for (Bounded& out : y) {
    double sum = 0.0, magnitude = 0.0, carried = 0.0;
    for (const Bounded& in : x) {
      const double v = static_cast<double>(*w++);
      sum += v * in.value;
      magnitude += std::abs(v) * (std::abs(in.value) + in.error);
      carried += std::abs(v) * in.error;
    }
    out = {scale * sum, std::abs(scale) * (eps * magnitude + carried)};
  }
  return y;
}

std::vector<Bounded> bounded_swiglu(const std::vector<Bounded>& gate, const std::vector<Bounded>& up, DType type) {
  constexpr double kSlope = 1.1;  // the steepest SiLU gets
  std::vector<Bounded> mid(gate.size());
  for (size_t i = 0; i < mid.size(); ++i) {
    const Bounded g = gate[i], u = up[i];
    const double silu = g.value / (1.0 + std::exp(-g.value)), value = silu * u.value;
    const double rounding = (type == DType::kBF16 ? kEpsBf16 : 0.0) + 16 * kEpsF32;
    const double error = kSlope * g.error * (std::abs(u.value) + u.error) + std::abs(silu) * u.error;
    mid[i] = {value, error + rounding * (std::abs(value) + error)};
  }
  return mid;
}

std::vector<Bounded> exact(const float* x, int64_t n) {
  std::vector<Bounded> v(static_cast<size_t>(n));
  for (size_t i = 0; i < v.size(); ++i) v[i].value = static_cast<double>(x[i]);
  return v;
}

}  // namespace quire::conformance
