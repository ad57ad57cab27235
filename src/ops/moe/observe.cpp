// What the experts' matrices are multiplied by: the tokens are grouped by the experts they chose.
#include <cstring>
#include <vector>

#include "ops/moe/kernels.h"
#include "ops/observer.h"

namespace quire::moe_detail {

void observe(const OpContext& ctx, const MoeArgs& a) {
  const int64_t tokens = a.h.dim(0), width = a.h.dim(1);
  const Weight* const router = &a.router;
  ctx.observer->inputs(ctx, {&router, 1}, 0, a.router_input());
  if (!a.shared_gate.empty())
    observe_mlp(ctx, {.gate = &a.shared_gate, .up = &a.shared_up, .down = &a.shared_down, .activation = a.activation},
                a.h);

  std::vector<std::vector<int64_t>> groups(static_cast<size_t>(a.router.rows));
  for (int64_t t = 0; t < tokens; ++t)
    for (int r = 0; r < a.top_k; ++r) groups[static_cast<size_t>(a.chosen.row<int32_t>(t)[r])].push_back(t);
  const auto row_bytes = static_cast<size_t>(dtype_bytes(a.h.dtype, width));
  for (size_t e = 0; e < groups.size(); ++e) {
    const int64_t here = a.here(static_cast<int64_t>(e));
    if (groups[e].empty() || here < 0) continue;
    Workspace::Scope scope(ctx.workspace);
    const auto count = static_cast<int64_t>(groups[e].size());
    const Tensor rows =
        make_tensor(scope.take<std::byte>(dtype_bytes(a.h.dtype, count * width)), a.h.dtype, {count, width});
    for (int64_t i = 0; i < count; ++i)
      std::memcpy(rows.rows(i, 1).data, a.h.rows(groups[e][static_cast<size_t>(i)], 1).data, row_bytes);
    const auto bias = [&](const Tensor& b) {
      return b.empty() ? Tensor{} : make_tensor(b.row<float>(here), {b.dim(1)});
    };
    observe_mlp(ctx,
                {.gate = &a.gate,
                 .up = &a.up,
                 .down = &a.down,
                 .expert = here,
                 .gate_bias = bias(a.gate_bias),
                 .up_bias = bias(a.up_bias),
                 .activation = a.activation},
                rows);
  }
}

}  // namespace quire::moe_detail
