#include "ops/vision_attention/cuda/kernels.h"

#include "ops/cuda/arguments.h"
#include "ops/cuda/context.h"
#include "ops/vision_attention/cuda/attend.h"

namespace quire::cuda {

bool vision_attention_fits(const Machine&, const VisionAttentionArgs& a) {
  for (const Tensor* t : {&a.q, &a.k, &a.v, &a.out})
    if (t->dtype != DType::kBF16) return false;
  if (!aligned_rows(a.q, 8) || !aligned_rows(a.k, 8) || !aligned_rows(a.v, 8) || !aligned_rows(a.out, 2)) return false;
  return a.q.dim(2) % 8 == 0 && a.q.dim(2) <= 512 && a.scale > 0.0f && a.q.dim(0) <= INT32_MAX;
}

void vision_attention(const OpContext& ctx, const VisionAttentionArgs& a) {
  Context& c = context_of(ctx);
  const int64_t rows = a.q.dim(0), width = a.q.dim(1) * a.q.dim(2);
  const bool turns = !a.rotation.positions.empty();
  Workspace::Scope scope(ctx.workspace);
  auto* const turned = scope.take<__nv_bfloat16>(turns ? 2 * rows * width : 0);
  if (c.dry || a.spans.count == 0) return;
  AttendParams p{.q = data<__nv_bfloat16>(a.q),
                 .k = data<__nv_bfloat16>(a.k),
                 .v = data<__nv_bfloat16>(a.v),
                 .q_stride = a.q.stride[0],
                 .k_stride = a.k.stride[0],
                 .v_stride = a.v.stride[0],
                 .out_stride = a.out.stride[0],
                 .out = data<__nv_bfloat16>(a.out),
                 .spans = a.spans.data,
                 .span_count = a.spans.count,
                 .most_rows = a.spans.most_rows,
                 .heads = narrow(a.q.dim(1)),
                 .d = narrow(a.q.dim(2)),
                 .scale = a.scale};
  if (turns) {
    c.keep(launch_turn(c.stream, {.q = p.q,
                                  .k = p.k,
                                  .q_stride = p.q_stride,
                                  .k_stride = p.k_stride,
                                  .positions = data<int32_t>(a.rotation.positions),
                                  .position_stride = a.rotation.positions.stride[0],
                                  .inv_freq = floats(a.rotation.inv_freq),
                                  .pairs = a.rotation.pairs,
                                  .q_to = turned,
                                  .k_to = turned + rows * width,
                                  .rows = narrow(rows),
                                  .heads = p.heads,
                                  .d = p.d}));
    p.q = turned;
    p.k = turned + rows * width;
    p.q_stride = p.k_stride = width;
  }
  c.keep(launch_attend(c.stream, p));
}

}  // namespace quire::cuda
