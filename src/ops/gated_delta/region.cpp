#include "ops/gated_delta/cuda/kernels.h"
#include "ops/gated_delta/gated_delta.h"
#include "ops/kernel_table.h"
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

constexpr auto kKernels = joined(  //
    cuda_rows<GatedDeltaNetArgs>({
        {"cuda_wide", cuda::wide_scan_fits, cuda::gated_delta_net_wide, GpuLevel::kMma, cuda::wide_scan_preferred,
         cuda::kWideScanTakes},
        {"cuda_narrow", cuda::gated_delta_net_fits, cuda::gated_delta_net_narrow, GpuLevel::kMma, nullptr,
         cuda::kGatedDeltaNetTakes},
    }),
    kernel_rows<GatedDeltaNetArgs>({
        {.name = "parts", .fits = fits_always<GatedDeltaNetArgs>, .launch = in_parts, .of_operators = true},
        {.name = "reference",
         .fits = fits_always<GatedDeltaNetArgs>,
         .launch = in_parts_of_references,
         .of_operators = true},
    }));

Traffic traffic_of(const GatedDeltaNetArgs& a) {
  Traffic t = kGdnPrepareOp.traffic(preparation(a));
  t += kGdnChunkedOp.traffic(rule(a));
  t += kGdnRecurrentOp.traffic(rule(a));
  return t += kGatedRmsNormOp.traffic(norm(a));
}

std::string describe_args(const GatedDeltaNetArgs& a) {
  const SegmentArray& s = a.segments;
  return fmt::format("qkv {}, k {}, v {}, conv {}, {} rows of {} sequences and {} of prompts", describe(a.qkv),
                     describe(a.k), describe(a.v), describe(a.conv_weight), s.decode_rows, s.decodes, s.prompt_rows);
}

}  // namespace

constinit const Operator<GatedDeltaNetArgs> kGatedDeltaNetOp{"gated_delta_net", kKernels, traffic_of, describe_args};

void gated_delta_net(const OpContext& ctx, const GatedDeltaNetArgs& a) {
  dispatch(kGatedDeltaNetOp, ctx, a);
}

}  // namespace quire
