// swiglu_mlp with another activation than SiLU on a CPU: the products are those of `linear`, and what is between them
// is a pass over its results.
#include "ops/linear/linear.h"
#include "ops/mlp/kernels.h"

namespace quire::mlp_detail {

void run_linear(const OpContext& ctx, const MlpArgs& a) {
  Workspace::Scope scope(ctx.workspace);
  const int64_t tokens = a.h.dim(0), inner = a.gate.rows, latency_rows = a.for_latency() ? tokens : 0;
  const Tensor gate = make_tensor(scope.take<float>(tokens * inner), {tokens, inner});
  const Tensor up = make_tensor(scope.take<float>(tokens * inner), {tokens, inner});
  const Tensor mid =
      make_tensor(scope.take<std::byte>(dtype_bytes(a.h.dtype, tokens * inner)), a.h.dtype, {tokens, inner});
  // Who observes inputs has seen those of this call.
  OpContext unseen = ctx;
  unseen.observer = nullptr;
  linear(unseen, {.x = a.h,
                  .parts = {{.w = a.gate, .bias = a.gate_bias, .y = gate}, {.w = a.up, .bias = a.up_bias, .y = up}},
                  .latency_rows = latency_rows});
  constexpr int64_t kGrain = 1024;
  ctx.pool.parallel_for(tokens * inner, kGrain, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i)
      store_float(mid, i, activated(a.activation, gate.as<float>()[i]) * up.as<float>()[i]);
  });
  linear(unseen, {.x = mid,
                  .parts = {{.w = a.down, .bias = a.down_bias, .y = a.x, .add_to_y = a.add_to_x}},
                  .latency_rows = latency_rows});
}

}  // namespace quire::mlp_detail
