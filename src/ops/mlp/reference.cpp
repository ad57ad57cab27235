#include "ops/gemm/reference.h"
#include "ops/mlp/kernels.h"

namespace quire::mlp_detail {

void reference(const OpContext& ctx, const MlpArgs& a) {
  Workspace::Scope scope(ctx.workspace);
  const int64_t tokens = a.h.dim(0), cols = a.h.dim(1), inner = a.gate.rows;
  const auto bias = [](const Tensor& b, int64_t n) { return b.empty() ? 0.0 : static_cast<double>(b.as<float>()[n]); };
  const float* h = gemm::rows_f32(scope, a.h);
  const float** rows = scope.take<const float*>(tokens);
  for (int64_t t = 0; t < tokens; ++t) rows[t] = h + t * cols;

  double* gate = scope.take<double>(tokens * inner);
  float* mid = scope.take<float>(tokens * inner);
  const Tensor mid_as_h = make_tensor(scope.take<float>(tokens * inner), a.h.dtype, {tokens, inner});
  const gemm::TokensBeside of_gate(a.gate, a.rounded, rows, tokens), of_up(a.up, a.rounded, rows, tokens);
  gemm::reference_gemm(ctx, a.gate, 0, of_gate.rows(), tokens,
                       [&](int64_t t, int64_t n, double v) { gate[t * inner + n] = v + bias(a.gate_bias, n); });
  gemm::reference_gemm(ctx, a.up, 0, of_up.rows(), tokens, [&](int64_t t, int64_t n, double v) {
    const double g = gate[t * inner + n];
    const int64_t at = t * inner + n;
    store_float(mid_as_h, at, static_cast<float>(gated(a.activation, g, v + bias(a.up_bias, n))));
    mid[at] = load_float(mid_as_h, at);
  });
  for (int64_t t = 0; t < tokens; ++t) rows[t] = mid + t * inner;
  const gemm::TokensBeside of_down(a.down, a.rounded, rows, tokens);
  gemm::reference_gemm(ctx, a.down, 0, of_down.rows(), tokens, [&](int64_t t, int64_t n, double v) {
    float& x = a.x.row<float>(t)[n];
    const double old = a.add_to_x ? static_cast<double>(x) : 0.0;
    x = static_cast<float>(old + v + bias(a.down_bias, n));
  });
}

}  // namespace quire::mlp_detail
