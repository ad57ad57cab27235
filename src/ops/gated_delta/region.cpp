#include "ops/cuda/ops.h"
#include "ops/gated_delta/gated_delta.h"
#include "ops/norm/norm.h"

namespace quire {
namespace {

GdnPrepareArgs preparation(const GatedDeltaNetArgs& a) {
  return {.qkv = a.qkv,
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
          .beta = a.beta};
}
GatedDeltaArgs rule(const GatedDeltaNetArgs& a) {
  return {.q = a.q,
          .k = a.k,
          .v = a.v,
          .g = a.g,
          .beta = a.beta,
          .heads = a.heads,
          .cache = a.cache,
          .segments = a.segments,
          .out = a.o};
}
GatedRmsNormArgs norm(const GatedDeltaNetArgs& a) {
  return {.o = a.o, .z = a.z, .weight = a.norm_weight, .eps = a.eps, .y = a.y};
}

void in_parts(const OpContext& ctx, const GatedDeltaNetArgs& a) {
  gdn_prepare(ctx, preparation(a));
  gdn_chunked(ctx, rule(a));
  gdn_recurrent(ctx, rule(a));
  gated_rms_norm(ctx, norm(a));
}

void in_parts_of_references(const OpContext& ctx, const GatedDeltaNetArgs& a) {
  OpContext references = ctx;
  references.machine.device = Device::kReference;
  in_parts(references, a);
}

constexpr Kernel<GatedDeltaNetArgs> kKernels[] = {
    {"parts", fits_always<GatedDeltaNetArgs>, in_parts},
    {"reference", fits_always<GatedDeltaNetArgs>, in_parts_of_references},
};

Traffic traffic_of(const GatedDeltaNetArgs& a) {
  Traffic t = kGdnPrepareOp.traffic(preparation(a));
  t += kGdnChunkedOp.traffic(rule(a));
  t += kGdnRecurrentOp.traffic(rule(a));
  return t += kGatedRmsNormOp.traffic(norm(a));
}

}  // namespace

constinit const Operator<GatedDeltaNetArgs> kGatedDeltaNetOp{"gated_delta_net", kKernels, traffic_of};

void gated_delta_net(const OpContext& ctx, const GatedDeltaNetArgs& a) {
  if (ctx.on_gpu()) return cuda::gated_delta_net(ctx, a);
  dispatch(kGatedDeltaNetOp, ctx, a);
}

}  // namespace quire
