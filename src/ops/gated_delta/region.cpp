#include "ops/cuda/ops.h"
#include "ops/gated_delta/gated_delta.h"
#include "ops/norm/norm.h"

namespace quire {

void gated_delta_net(const OpContext& ctx, const GatedDeltaNetArgs& a) {
  if (ctx.on_gpu()) return cuda::gated_delta_net(ctx, a);
  gdn_prepare(ctx, {.qkv = a.qkv,
                    .a = a.a,
                    .b = a.b,
                    .conv_weight = a.conv_weight,
                    .ssm_a = a.ssm_a,
                    .dt_bias = a.dt_bias,
                    .cache = a.cache,
                    .segments = a.segments,
                    .q = a.q,
                    .k = a.k,
                    .v = a.v,
                    .g = a.g,
                    .beta = a.beta});
  const GatedDeltaArgs rule{.q = a.q,
                            .k = a.k,
                            .v = a.v,
                            .g = a.g,
                            .beta = a.beta,
                            .heads = a.heads,
                            .cache = a.cache,
                            .segments = a.segments,
                            .out = a.o};
  gdn_chunked(ctx, rule);
  gdn_recurrent(ctx, rule);
  gated_rms_norm(ctx, {.o = a.o, .z = a.z, .weight = a.norm_weight, .eps = a.eps, .y = a.y});
}

}  // namespace quire
