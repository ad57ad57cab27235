#include "ops/gated_delta/cuda/kernels.h"

#include "ops/cuda/arguments.h"
#include "ops/cuda/context.h"
#include "ops/gated_delta/cuda/chunked.h"
#include "ops/gated_delta/cuda/decode.h"
#include "ops/gated_delta/cuda/prepare.h"
#include "ops/norm/norm.h"

namespace quire::cuda {
namespace {

using Bf16 = __nv_bfloat16;

DeltaSlots slots_of(const DeltaState& s) {
  const auto bytes = [](const Tensor& t) { return dtype_bytes(t.dtype, t.stride[0]); };
  return {.state = {data<float>(s.state), bytes(s.state)},
          .pending_k = {data<Bf16>(s.pending_k), bytes(s.pending_k)},
          .pending_u = {data<float>(s.pending_u), bytes(s.pending_u)},
          .pending_g = {data<float>(s.pending_g), bytes(s.pending_g)},
          .conv = {data<Bf16>(s.conv), bytes(s.conv)},
          .pending = narrow(s.pending_k.dim(1)),
          .ring = narrow(s.conv.dim(1))};
}

GateInput gate_of(const Tensor& t) {
  return {t.data, t.stride[0], t.dtype == DType::kBF16};
}

DeltaShape shape_of(const GatedDeltaNetArgs& a) {
  return {.Hk = narrow(a.k.dim(1)), .Hv = narrow(a.v.dim(1)), .grouped = a.heads == HeadMap::kGrouped};
}

void decode(Context& c, const GatedDeltaNetArgs& a, const DeltaShape& shape, const DeltaWeights& weights) {
  c.keep(launch_gdn_decode(c.stream, {.shape = shape,
                                      .weights = weights,
                                      .slots = slots_of(a.cache),
                                      .segments = a.segments,
                                      .states_at_rest = c.states_at_rest,
                                      .qkv = data<Bf16>(a.qkv),
                                      .qkv_stride = a.qkv.stride[0],
                                      .a = gate_of(a.a),
                                      .b = gate_of(a.b),
                                      .z = data<Bf16>(a.z),
                                      .z_stride = a.z.stride[0],
                                      .norm_weight = floats(a.norm_weight),
                                      .eps = a.eps,
                                      .y = data<Bf16>(a.y),
                                      .y_stride = a.y.stride[0]}));
}

void prompts(const OpContext& ctx, const GatedDeltaNetArgs& a, const DeltaShape& shape, const DeltaWeights& weights,
             int32_t slab) {
  Context& c = context_of(ctx);
  const SegmentArray& s = a.segments;
  const DeltaSlots slots = slots_of(a.cache);
  Workspace::Scope scope(ctx.workspace);
  std::byte* const scratch =
      scope.take<std::byte>(gdn_chunked_workspace_bytes(shape, s.prompt_rows, s.count - s.decodes));
  if (c.dry) return;
  c.keep(launch_gdn_prepare(c.stream, {.shape = shape,
                                       .weights = weights,
                                       .slots = slots,
                                       .segments = s,
                                       .prompt_rows = s.prompt_rows,
                                       .qkv = data<Bf16>(a.qkv),
                                       .qkv_stride = a.qkv.stride[0],
                                       .a = gate_of(a.a),
                                       .b = gate_of(a.b),
                                       .q = data<Bf16>(a.q),
                                       .k = data<Bf16>(a.k),
                                       .v = data<Bf16>(a.v),
                                       .g = data<float>(a.g),
                                       .beta = data<float>(a.beta)}));
  c.keep(launch_gdn_chunked(c.stream, {.shape = shape,
                                       .slots = slots,
                                       .segments = s,
                                       .prompt_rows = s.prompt_rows,
                                       .q = data<Bf16>(a.q),
                                       .k = data<Bf16>(a.k),
                                       .v = data<Bf16>(a.v),
                                       .g = data<float>(a.g),
                                       .beta = data<float>(a.beta),
                                       .out = data<Bf16>(a.o),
                                       .slab = slab,
                                       .workspace = scratch}));
  // Rows of prompts follow those of generated tokens.
  const int64_t first = s.decode_rows, rows = a.o.dim(0) - first;
  quire::gated_rms_norm(ctx, {.o = a.o.rows(first, rows),
                              .z = a.z.rows(first, rows),
                              .weight = a.norm_weight,
                              .eps = a.eps,
                              .y = a.y.rows(first, rows)});
}

template <int32_t kSlab>
void run(const OpContext& ctx, const GatedDeltaNetArgs& a) {
  Context& c = context_of(ctx);
  const DeltaShape shape = shape_of(a);
  const DeltaWeights weights{floats(a.conv_weight), floats(a.ssm_a), floats(a.dt_bias)};
  if (a.segments.decodes > 0 && !c.dry) decode(c, a, shape, weights);
  if (a.segments.prompt_rows > 0) prompts(ctx, a, shape, weights, kSlab);
}

int64_t prompts_of(const SegmentArray& s) {
  return s.count - s.decodes;
}

}  // namespace

bool gated_delta_net_fits(const Machine&, const GatedDeltaNetArgs& a) {
  const SegmentArray& s = a.segments;
  for (const Tensor* t : {&a.qkv, &a.z, &a.q, &a.k, &a.v, &a.o, &a.y, &a.cache.pending_k, &a.cache.conv})
    if (t->dtype != DType::kBF16) return false;
  const int64_t alignment = prompts_of(s) > 0 ? 8 : 4;
  return is_activation(a.a) && is_activation(a.b) && a.k.dim(2) == kDeltaHead && a.v.dim(2) == kDeltaHead &&
         a.conv_weight.dim(1) == kDeltaTaps && check_delta(shape_of(a)).ok() && check_delta(slots_of(a.cache)).ok() &&
         aligned_rows(a.qkv, alignment) && aligned_rows(a.z, alignment) && aligned_rows(a.y, alignment) &&
         s.decodes * a.v.dim(1) <= INT32_MAX && s.prompt_rows / kGdnPrepareRows + prompts_of(s) <= 65535;
}

bool wide_scan_fits(const Machine& m, const GatedDeltaNetArgs& a) {
  return gated_delta_net_fits(m, a) && wide_scan_has_room(m.gpu);
}
bool wide_scan_preferred(const Machine& m, const GatedDeltaNetArgs& a) {
  return a.segments.prompt_rows > 0 && choose_slab(shape_of(a), prompts_of(a.segments), m.gpu) == 64;
}
void gated_delta_net_wide(const OpContext& ctx, const GatedDeltaNetArgs& a) {
  run<64>(ctx, a);
}
void gated_delta_net_narrow(const OpContext& ctx, const GatedDeltaNetArgs& a) {
  run<32>(ctx, a);
}

}  // namespace quire::cuda
