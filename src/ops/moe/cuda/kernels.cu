#include "ops/moe/cuda/kernels.h"

#include "ops/cuda/arguments.h"
#include "ops/cuda/context.h"
#include "ops/cuda/weights.h"
#include "ops/moe/cuda/moe.h"

namespace quire::moe_cuda {
namespace {

// Whether the shared expert was placed as one more of the others.
bool lies_behind(const Weight& w, const gemm::PackedWeight& packed, const Weight& shared) {
  return !shared.empty() && shared.data == w.data + packed.expert_bytes() * packed.experts && shared.dtype == w.dtype &&
         shared.rows == w.rows && shared.cols == w.cols;
}

MoeParams params_of(const MoeArgs& a) {
  MoeParams p{.h = cuda::data<__nv_bfloat16>(a.h),
              .h_stride = a.h.stride[0],
              .rows = cuda::narrow(a.h.dim(0)),
              .experts = cuda::narrow(a.router.rows),
              .top_k = a.top_k,
              .router = cuda::packed(a.router),
              .router_scale = a.router.scale,
              .gate_up = cuda::packed_pair(a.gate),
              .down = cuda::packed(a.down),
              .gate_scale = a.gate.scale,
              .up_scale = a.up.scale,
              .down_scale = a.down.scale,
              .x = cuda::data<float>(a.x),
              .x_stride = a.x.stride[0],
              .add_to_x = a.add_to_x,
              .chosen = a.chosen.empty() ? nullptr : cuda::data<int32_t>(a.chosen)};
  if (a.shared_gate.empty()) return p;
  p.shared_router = a.shared_router.empty() ? nullptr : cuda::floats(a.shared_router);
  if (lies_behind(a.gate, p.gate_up, a.shared_gate) && lies_behind(a.down, p.down, a.shared_down)) {
    ++p.gate_up.experts;
    ++p.down.experts;
  } else {
    p.shared_gate_up = cuda::packed_pair(a.shared_gate);
    p.shared_down = cuda::packed(a.shared_down);
    p.shared_gate_scale = a.shared_gate.scale;
    p.shared_up_scale = a.shared_up.scale;
    p.shared_down_scale = a.shared_down.scale;
  }
  return p;
}

void launch(const OpContext& ctx, const MoeArgs& a, Experts experts) {
  cuda::Context& c = cuda::context_of(ctx);
  MoeParams p = params_of(a);
  p.by = experts;
  p.barrier = c.barrier();
  c.weights.read({cuda::range_of(p.router), {}}, c.dry);
  p.next = c.weights.next();
  Workspace::Scope scope(ctx.workspace);
  p.workspace = scope.take<std::byte>(moe_workspace_bytes(p));
  if (!c.dry) c.keep(launch_moe(c.stream, p));
}

}  // namespace

bool fits_routed(const Machine&, const MoeArgs& a) {
  const auto eighths = [](const Weight& w) { return w.rows % 8 == 0 && w.cols % 8 == 0; };
  return a.h.dtype == DType::kBF16 && a.router.rows <= kMaxExperts && a.top_k <= kMaxTopK &&
         a.gate.dtype == a.up.dtype && eighths(a.gate) && cuda::aligned_rows(a.h, 8) && cuda::aligned_rows(a.x, 4) &&
         (a.shared_gate.empty() || (a.shared_gate.dtype == a.shared_up.dtype && eighths(a.shared_gate)));
}
bool prefers_tiles(const Machine& m, const MoeArgs& a) {
  return experts_take_tiles(params_of(a), m.gpu);
}
void launch_tiles(const OpContext& ctx, const MoeArgs& a) {
  launch(ctx, a, Experts::kTile);
}
void launch_stream(const OpContext& ctx, const MoeArgs& a) {
  launch(ctx, a, Experts::kStream);
}

bool fits_few(const Machine& m, const MoeArgs& a) {
  return fits_routed(m, a) && few_rows_fit(params_of(a), m.gpu);
}
void launch_few(const OpContext& ctx, const MoeArgs& a) {
  launch(ctx, a, Experts::kFew);
}

}  // namespace quire::moe_cuda
