#include "ops/observer.h"

#include "ops/linear/linear.h"

namespace quire {

void observe_mlp(const OpContext& ctx, const ObservedMlp& m, const Tensor& h) {
  const Weight* const first[] = {m.gate, m.up};
  ctx.observer->inputs(ctx, first, m.expert, h);

  Workspace::Scope scope(ctx.workspace);
  const int64_t tokens = h.dim(0), inner = m.gate->rows;
  const Tensor gate = make_tensor(scope.take<float>(tokens * inner), {tokens, inner});
  const Tensor up = make_tensor(scope.take<float>(tokens * inner), {tokens, inner});
  const Tensor mid = make_tensor(scope.take<std::byte>(dtype_bytes(h.dtype, tokens * inner)), h.dtype, {tokens, inner});
  OpContext unseen = ctx;
  unseen.observer = nullptr;
  const LinearPart parts[] = {{.w = m.gate->expert_slice(m.expert), .bias = m.gate_bias, .y = gate},
                              {.w = m.up->expert_slice(m.expert), .bias = m.up_bias, .y = up}};
  linear(unseen, {.x = h, .parts = parts});
  ctx.pool.parallel_for(tokens, 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin * inner; i < end * inner; ++i) {
      store_float(mid, i, gated(m.activation, gate.as<float>()[i], up.as<float>()[i]));
    }
  });
  ctx.observer->inputs(ctx, {&m.down, 1}, m.expert, mid);
}

}  // namespace quire
