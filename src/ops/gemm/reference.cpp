#include "ops/gemm/reference.h"

#include <cmath>

#include "ops/gemm/e4m3_tokens.h"
#include "ops/gemm/fp4_tokens.h"

namespace quire::gemm {

double dot_f64(const float* a, const float* b, int64_t n) {
  constexpr int kLanes = 16;
  double part[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int j = 0; j < kLanes; ++j) part[j] += static_cast<double>(a[i + j]) * static_cast<double>(b[i + j]);
  double sum = 0.0;
  for (; i < n; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  for (double p : part) sum += p;
  return sum;
}

float* rows_f32(Workspace::Scope& scope, const Tensor& x) {
  const int64_t rows = x.dim(0), cols = x.dim(1);
  float* out = scope.take<float>(rows * cols);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) out[r * cols + c] = load_float(x, r * x.stride[0] + c);
  return out;
}

TokensBeside::TokensBeside(const Weight& w, const RoundedTokens& wanted, const float* const* rows, int64_t count)
    : rows_(rows) {
  if (wanted.rows == 0 || !rounds_beside(wanted.to, w.dtype)) return;
  values_.resize(static_cast<size_t>(count * w.cols));
  for (int64_t i = 0; i < count; ++i) {
    float* const to = values_.data() + i * w.cols;
    if (wanted.to == TokenRounding::kE4m3)
      round_to_e4m3(rows[i], w.cols, to);
    else
      round_to_fp4(w.dtype, rows[i], w.cols, to);
    rounded_.push_back(to);
  }
}

}  // namespace quire::gemm
