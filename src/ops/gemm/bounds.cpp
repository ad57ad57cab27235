#include "ops/gemm/bounds.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <span>

#include "core/float.h"
#include "ops/conformance/conformance.h"
#include "ops/gemm/e4m3_tokens.h"
#include "ops/gemm/fp4_tokens.h"
#include "quant/format_table.h"

namespace quire::conformance {

bool takes_integers(std::string_view kernel) {
  return kernel.starts_with("integer");
}

double weight_eps(std::string_view kernel, DType type) {
  if (kernel == kBaseLevel || kernel == "reference") return 0.0;
  if (takes_integers(kernel)) return 4 * kEpsF32;  // the product of both scales, and each of them
  const quant::FormatRow& f = *quant::find_format(type);
  if (f.fits_bf16) return 0.0;
  if (Suite::is_on_gpu(kernel)) return type == DType::kF16 || type == DType::kF32 ? 0.0 : kEpsBf16;
  return kernel == "amx" ? kEpsBf16 + f.half_roundings * kEpsF16 : kEpsBf16;
}

double sum_eps(std::string_view kernel, int64_t cols) {
  // Two columns a step, each of which may lose a whole place, in chains of 128 columns that are added to nearest.
  if (kernel == "bfmmla") {
    const double chain = static_cast<double>(std::min<int64_t>(cols, 128)) / 2.0;
    return (chain + static_cast<double>(cols) / 256.0 + 16.0) * kEpsF32;
  }
  const double a_step = Suite::is_on_gpu(kernel) ? 2.0 : 1.0;
  return (a_step * static_cast<double>(cols) / 16.0 + 16.0) * kEpsF32;
}

namespace {

// What a tensor core cuts off a sum of codes. It adds 32 products at a time to what it has of a block of 128 columns,
// all aligned to the largest of these 33 terms, of which 13 binary places are kept.
double cut_off(const float* w, const std::vector<Bounded>& tokens) {
  double error = 0.0, sum = 0.0;
  for (size_t c = 0; c < tokens.size(); c += 32) {
    if (c % gemm::kE4m3TokenCols == 0) sum = 0.0;
    double largest = std::abs(sum);
    for (size_t i = c; i < c + 32; ++i) {
      const double term = static_cast<double>(w[i]) * tokens[i].value;
      sum += term;
      largest = std::max(largest, std::abs(term) + std::abs(static_cast<double>(w[i])) * tokens[i].error);
    }
    error += 33 * 0x1p-13 * largest;
  }
  return error;
}

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

// What `v` becomes in E4M3 where `largest` is the largest magnitude of its 128 columns.
double in_e4m3(double v, double largest) {
  const float factor = gemm::kLargestE4m3 / static_cast<float>(largest);
  const float code = to_float(to_e4m3(static_cast<float>(v) * factor));
  return static_cast<double>(code) * largest / static_cast<double>(gemm::kLargestE4m3);
}

// Numbers that are known to a bound may become one code or its neighbour, but not far from one another.
std::vector<Bounded> as_e4m3(std::vector<Bounded> x) {
  for (size_t first = 0; first < x.size(); first += gemm::kE4m3TokenCols) {
    const std::span<Bounded> group = std::span(x).subspan(first, gemm::kE4m3TokenCols);
    double largest = static_cast<double>(gemm::kLeastE4m3Magnitude), error = 0.0;
    for (const Bounded& v : group) {
      largest = std::max(largest, std::abs(v.value));
      error = std::max(error, v.error);
    }
    for (Bounded& v : group) {
      const double code = in_e4m3(v.value, largest);
      double far = 0.0, most = std::abs(code);
      for (const double to : {v.value - v.error, v.value + v.error})
        for (const double scale : {std::max(largest - error, largest / 2), largest + error}) {
          const double other = in_e4m3(to, scale);
          far = std::max(far, std::abs(other - code));
          most = std::max(most, std::abs(other));
        }
      v = {code, far + most * (2 * error / largest + kEpsF32)};
    }
  }
  return x;
}

uint32_t magnitude_bits(double x) {
  return std::max(std::bit_cast<uint32_t>(static_cast<float>(std::max(x, 0.0))), gemm::kLeastFp4Magnitude);
}

// Numbers that are known to a bound may become a code or its neighbour, under one scale or the next.
std::vector<Bounded> as_fp4(DType weights, std::vector<Bounded> x) {
  Bounded row;
  for (const Bounded& v : x) {
    row.value = std::max(row.value, std::abs(v.value));
    row.error = std::max(row.error, v.error);
    if (std::isfinite(v.value)) continue;
    for (Bounded& all : x) all = {NAN, 0.0};
    return x;
  }
  const uint32_t rows[] = {magnitude_bits(row.value), magnitude_bits(row.value - row.error),
                           magnitude_bits(row.value + row.error)};
  const auto each = static_cast<size_t>(gemm::fp4_block(weights));
  for (size_t first = 0; first < x.size(); first += each) {
    const std::span<Bounded> block = std::span(x).subspan(first, std::min(each, x.size() - first));
    Bounded largest;
    for (const Bounded& v : block) {
      largest.value = std::max(largest.value, std::abs(v.value));
      largest.error = std::max(largest.error, v.error);
    }
    std::vector<float> scales;  // the first is that of the numbers themselves
    for (const double by : {0.0, -1.0, -0.5, 0.5, 1.0})
      for (const uint32_t of_row : rows)
        scales.push_back(gemm::fp4_scale(weights, magnitude_bits(largest.value + by * largest.error), of_row));
    for (Bounded& v : block) {
      const double code = gemm::to_fp4(static_cast<float>(v.value), scales[0]);
      double far = 0.0;
      for (const float scale : scales)
        for (const double at : {v.value - v.error, v.value, v.value + v.error})
          far = std::max(far, std::abs(static_cast<double>(gemm::to_fp4(static_cast<float>(at), scale)) - code));
      v = {code, far};
    }
  }
  return x;
}

}  // namespace

std::vector<Bounded> bounded_product(const float* w, const Weight& like, int64_t expert,
                                     const std::vector<Bounded>& tokens, std::string_view kernel,
                                     TokenRounding rounded) {
  const bool rounds = gemm::rounds_beside(rounded, like.dtype), e4m3 = rounds && rounded == TokenRounding::kE4m3;
  const std::vector<Bounded> x = e4m3                     ? as_e4m3(tokens)
                                 : rounds                 ? as_fp4(like.dtype, tokens)
                                 : takes_integers(kernel) ? as_integers(tokens)
                                                          : tokens;
  const double scale = static_cast<double>(like.scale_of(expert));
  // Codes are multiplied as they are.
  const double eps = (rounds ? 0.0 : weight_eps(kernel, like.dtype)) + sum_eps(kernel, like.cols);
  std::vector<Bounded> y(static_cast<size_t>(like.rows));
  for (Bounded& out : y) {
    double sum = 0.0, magnitude = 0.0, carried = 0.0;
    const double cut = e4m3 && kernel == kE4m3Kernel ? cut_off(w, x) : 0.0;
    for (const Bounded& in : x) {
      const double v = static_cast<double>(*w++);
      sum += v * in.value;
      magnitude += std::abs(v) * (std::abs(in.value) + in.error);
      carried += std::abs(v) * in.error;
    }
    out = {scale * sum, std::abs(scale) * (eps * magnitude + carried + cut)};
  }
  return y;
}

std::vector<Bounded> bounded_gated(GateActivation activation, const std::vector<Bounded>& gate,
                                   const std::vector<Bounded>& up, DType type) {
  constexpr double kSlope = 1.2;  // the steepest that a function of the gate gets
  std::vector<Bounded> mid(gate.size());
  for (size_t i = 0; i < mid.size(); ++i) {
    Bounded g = gate[i], u = up[i];
    double rounding = (type == DType::kBF16 ? kEpsBf16 : 0.0) + 16 * kEpsF32;
    double act = g.value / (1.0 + std::exp(-g.value));
    if (activation == GateActivation::kGeluTanh) {
      const double inner = std::sqrt(2 / M_PI) * (g.value + 0.044715 * g.value * g.value * g.value);
      act = 0.5 * g.value * (1 + std::tanh(inner));
      // The exponent, up to |inner|, is rounded a few times; where it is large the result is all but 0 or g.
      rounding += 8 * std::min(std::abs(inner), 90.0) * kEpsF32;
    } else if (activation == GateActivation::kSwigluOai) {
      g.value = std::min(g.value, 7.0);
      u.value = std::clamp(u.value, -7.0, 7.0) + 1;
      u.error += 16 * kEpsF32;  // of the sum
      act = g.value / (1 + std::exp(-1.702 * g.value));
    }
    const double value = act * u.value;
    const double error = kSlope * g.error * (std::abs(u.value) + u.error) + std::abs(act) * u.error;
    mid[i] = {value, error + rounding * (std::abs(value) + error)};
  }
  return mid;
}

std::vector<Bounded> with_bias(std::vector<Bounded> sums, const float* bias) {
  for (Bounded& v : sums) {
    v.value += static_cast<double>(*bias++);
    v.error += 2 * kEpsF32 * std::abs(v.value);
  }
  return sums;
}

std::vector<Bounded> exact(const float* x, int64_t n) {
  std::vector<Bounded> v(static_cast<size_t>(n));
  for (size_t i = 0; i < v.size(); ++i) v[i].value = static_cast<double>(x[i]);
  return v;
}

}  // namespace quire::conformance
