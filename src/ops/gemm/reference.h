// The loop behind the references of linear, swiglu_mlp and moe.
#pragma once

#include <algorithm>
#include <vector>

#include "ops/gemm/decode.h"
#include "ops/gemm/token_rounding.h"

namespace quire::gemm {

// Sum of a[i] * b[i] in float64. Products of two floats are exact there; sixteen partial sums let the
// compiler use vectors, and their number does not depend on anything, so the sum does not either.
double dot_f64(const float* a, const float* b, int64_t n);

// A float32 copy of the rows of x [T, K] (bf16 or f32), contiguous.
float* rows_f32(Workspace::Scope& scope, const Tensor& x);

// What weights `w` are multiplied with: `rows` of w.cols floats, rounded if that is wanted beside such weights.
class TokensBeside {
 public:
  TokensBeside(const Weight& w, const RoundedTokens& wanted, const float* const* rows, int64_t count);
  const float* const* rows() const { return rounded_.empty() ? rows_ : rounded_.data(); }

 private:
  const float* const* rows_;
  std::vector<float> values_;
  std::vector<const float*> rounded_;
};

// Calls store(i, n, value) with value = scale * W[n] . rows[i] for all i < count and n < N; rows[i] has K
// floats. Threads share the outputs n: store must not care who calls it.
template <class Store>
void reference_gemm(const OpContext& ctx, const Weight& w, int64_t expert, const float* const* rows, int64_t count,
                    Store&& store) {
  if (count == 0) return;
  Workspace::Scope scope(ctx.workspace);
  float* decoded = scope.take<float>(ctx.pool.size() * w.cols);
  const double scale = static_cast<double>(w.scale_of(expert));
  ctx.pool.parallel_for(w.rows, 8, [&](int64_t begin, int64_t end, int thread) {
    float* row = decoded + thread * w.cols;
    for (int64_t n = begin; n < end; ++n) {
      decode_f32(w, expert, n, 0, w.cols, row);
      for (int64_t i = 0; i < count; ++i) store(i, n, scale * dot_f64(row, rows[i], w.cols));
    }
  });
}

}  // namespace quire::gemm
