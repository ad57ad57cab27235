#include "ops/gemm/reference.h"
#include "ops/linear/kernels.h"

namespace quire::linear_detail {

void reference(const OpContext& ctx, const LinearArgs& a) {
  Workspace::Scope scope(ctx.workspace);
  const int64_t tokens = a.x.dim(0), cols = a.x.dim(1);
  const float* x = gemm::rows_f32(scope, a.x);
  const float** rows = scope.take<const float*>(tokens);
  for (int64_t t = 0; t < tokens; ++t) rows[t] = x + t * cols;
  for (const LinearPart& p : a.parts) {
    const gemm::TokensBeside rounded(p.w, a.rounded, rows, tokens);
    gemm::reference_gemm(ctx, p.w, 0, rounded.rows(), tokens, [&](int64_t t, int64_t n, double v) {
      const int64_t at = t * p.y.stride[0] + n;
      if (!p.bias.empty()) v += static_cast<double>(p.bias.as<float>()[n]);
      if (p.add_to_y) v += static_cast<double>(load_float(p.y, at));
      store_float(p.y, at, static_cast<float>(v));
    });
  }
}

}  // namespace quire::linear_detail
