// From operators' arguments to the launches of their CUDA kernels.
#include "ops/cuda/ops.h"

#include "ops/attention/attention.h"
#include "ops/attention/cuda/attention.h"
#include "ops/copy/copy.h"
#include "ops/copy/cuda/copy.h"
#include "ops/cuda/context.h"
#include "ops/cuda/weights.h"
#include "ops/gated_delta/cuda/chunked.h"
#include "ops/gated_delta/cuda/decode.h"
#include "ops/gated_delta/cuda/prepare.h"
#include "ops/gated_delta/gated_delta.h"
#include "ops/linear/cuda/linear.h"
#include "ops/linear/linear.h"
#include "ops/mlp/cuda/mlp.h"
#include "ops/mlp/mlp.h"
#include "ops/moe/cuda/moe.h"
#include "ops/moe/moe.h"
#include "ops/norm/cuda/norm.h"
#include "ops/norm/norm.h"
#include "ops/rows/cuda/rows.h"
#include "ops/rows/rows.h"
#include "ops/sampling/cuda/sample.h"
#include "ops/sampling/history.h"
#include "ops/sampling/sampling.h"

namespace quire::cuda {
namespace {

template <class T>
T* data(const Tensor& t) {
  return static_cast<T*>(t.data);
}
const float* floats(const Tensor& t) {
  return static_cast<const float*>(t.data);
}
using Bf16 = __nv_bfloat16;

int32_t narrow(int64_t n) {
  return static_cast<int32_t>(n);
}

gemm::Out out_of(const LinearPart& p) {
  if (p.add_to_y) return gemm::Out::kAddF32;
  return p.y.dtype == DType::kF32 ? gemm::Out::kF32 : gemm::Out::kBf16;
}

KvCache cache_of(const KvLayer& kv) {
  return {kv.k.data, kv.v.data, dtype_bytes(kv.k.dtype, kv.k.stride[0]),
          kv.k.dtype == DType::kF8E4M3 ? KvFormat::kE4m3 : KvFormat::kBf16};
}

DeltaSlots slots_of(const DeltaState& s) {
  const auto bytes = [](const Tensor& t) { return dtype_bytes(t.dtype, t.stride[0]); };
  return {.state = {data<float>(s.state), bytes(s.state)},
          .window_k = {data<Bf16>(s.window_k), bytes(s.window_k)},
          .window_u = {data<float>(s.window_u), bytes(s.window_u)},
          .window_g = {data<float>(s.window_g), bytes(s.window_g)},
          .conv = {data<Bf16>(s.conv), bytes(s.conv)},
          .window = narrow(s.window_k.dim(1)),
          .ring = narrow(s.conv.dim(1))};
}

GateInput gate_of(const Tensor& t) {
  return {t.data, t.stride[0], t.dtype == DType::kBF16};
}

}  // namespace

void embed(const OpContext& ctx, const EmbedArgs& a) {
  if (ctx.cuda->dry || a.x.dim(0) == 0) return;
  if (a.x.stride[0] != a.x.dim(1)) return ctx.cuda->keep(Error{Fault::kBug, "embed: rows of x are apart"});
  const bool sources = !a.sources.empty();
  ctx.cuda->keep(launch_embed(ctx.cuda->stream, {.tokens = data<int32_t>(a.tokens),
                                                 .sources = sources ? data<int32_t>(a.sources) : nullptr,
                                                 .sampled = sources ? data<int32_t>(a.sampled) : nullptr,
                                                 .dtype = a.table.dtype,
                                                 .table = a.table.data,
                                                 .scale = a.table.scale_of(),
                                                 .rows = narrow(a.x.dim(0)),
                                                 .vocab = narrow(a.table.rows),
                                                 .width = narrow(a.table.cols),
                                                 .x = data<float>(a.x)}));
}

void gather_rows(const OpContext& ctx, const GatherRowsArgs& a) {
  if (ctx.cuda->dry) return;
  const int64_t row = dtype_bytes(a.x.dtype, 1);
  ctx.cuda->keep(launch_gather_rows(ctx.cuda->stream, {.x = a.x.data,
                                                       .rows = data<int32_t>(a.rows),
                                                       .y = a.y.data,
                                                       .count = narrow(a.y.dim(0)),
                                                       .x_rows = narrow(a.x.dim(0)),
                                                       .row_bytes = a.y.dim(1) * row,
                                                       .x_stride = a.x.stride[0] * row,
                                                       .y_stride = a.y.stride[0] * row}));
}

void reduce_partials(const OpContext& ctx, const ReducePartialsArgs& a) {
  if (ctx.cuda->dry) return;
  ctx.cuda->keep(launch_reduce_partials(ctx.cuda->stream, {.partials = floats(a.partials),
                                                           .count = narrow(a.partials.dim(0)),
                                                           .partial_stride = a.partials.stride[0],
                                                           .row_stride = a.partials.stride[1],
                                                           .x = data<float>(a.x),
                                                           .x_stride = a.x.stride[0],
                                                           .rows = narrow(a.x.dim(0)),
                                                           .width = narrow(a.x.dim(1)),
                                                           .add_to_x = a.add_to_x}));
}

void add_rms_norm(const OpContext& ctx, const AddRmsNormArgs& a) {
  if (ctx.cuda->dry) return;
  AddRmsNormParams p{.rows = a.x.dim(0),
                     .D = a.x.dim(1),
                     .x = data<float>(a.x),
                     .x_stride = a.x.stride[0],
                     .weight = floats(a.weight),
                     .eps = a.eps,
                     .h = a.h.data,
                     .h_bf16 = a.h.dtype == DType::kBF16,
                     .h_stride = a.h.stride[0]};
  if (!a.add.empty())
    p.add = a.add.data, p.add_bf16 = a.add.dtype == DType::kBF16, p.add_stride = a.add.stride[0];
  ctx.cuda->keep(launch_add_rms_norm(ctx.cuda->stream, p));
}

void gated_rms_norm(const OpContext& ctx, const GatedRmsNormArgs& a) {
  if (ctx.cuda->dry) return;
  ctx.cuda->keep(launch_gated_rms_norm(ctx.cuda->stream, {.rows = a.o.dim(0),
                                                          .Hv = narrow(a.o.dim(1)),
                                                          .bf16 = a.o.dtype == DType::kBF16,
                                                          .o = a.o.data,
                                                          .o_stride = a.o.stride[0],
                                                          .z = a.z.data,
                                                          .z_stride = a.z.stride[0],
                                                          .weight = floats(a.weight),
                                                          .eps = a.eps,
                                                          .y = a.y.data,
                                                          .y_stride = a.y.stride[0]}));
}

// What a product reads, for the order of weights.
static WeightOrder::Range range_of(const gemm::PackedWeight& w) {
  return {static_cast<const std::byte*>(w.data), w.bytes()};
}
// The two largest of its parts.
static WeightOrder::Read parts_read(const gemm::GemmPart* parts, size_t count) {
  WeightOrder::Read read{};
  for (size_t i = 0; i < count; ++i) {
    const WeightOrder::Range range = range_of(parts[i].weight);
    if (range.bytes > read[0].bytes)
      read[1] = std::exchange(read[0], range);
    else if (range.bytes > read[1].bytes)
      read[1] = range;
  }
  return read;
}

void linear(const OpContext& ctx, const LinearArgs& a) {
  gemm::GemmPart parts[LinearParts::kMost];
  for (size_t i = 0; i < a.parts.size(); ++i) {
    const LinearPart& p = a.parts[i];
    parts[i] = {.weight = packed(p.w),
                .scale = p.w.scale,
                .bias = p.bias.empty() ? nullptr : floats(p.bias),
                .y = p.y.data,
                .y_stride = p.y.stride[0],
                .out = out_of(p)};
  }
  ctx.cuda->weights.read(parts_read(parts, a.parts.size()), ctx.cuda->dry);
  linear_cuda::LinearParams p{.x = data<Bf16>(a.x),
                              .x_stride = a.x.stride[0],
                              .rows = narrow(a.x.dim(0)),
                              .parts = parts,
                              .part_count = narrow(std::ssize(a.parts))};
  Workspace::Scope scope(ctx.workspace);
  p.workspace =
      scope.take<float>(linear_cuda::linear_workspace_bytes(p) / static_cast<int64_t>(sizeof(float)));
  if (!ctx.cuda->dry) ctx.cuda->keep(linear_cuda::launch_linear(ctx.cuda->stream, p));
}

void swiglu_mlp(const OpContext& ctx, const MlpArgs& a) {
  const auto bias = [](const Tensor& t) { return t.empty() ? nullptr : floats(t); };
  mlp_cuda::MlpParams p{.h = data<Bf16>(a.h),
                        .h_stride = a.h.stride[0],
                        .rows = narrow(a.h.dim(0)),
                        .gate_up = packed_pair(a.gate),
                        .down = packed(a.down),
                        .gate_scale = a.gate.scale,
                        .up_scale = a.up.scale,
                        .down_scale = a.down.scale,
                        .gate_bias = bias(a.gate_bias),
                        .up_bias = bias(a.up_bias),
                        .down_bias = bias(a.down_bias),
                        .x = data<float>(a.x),
                        .x_stride = a.x.stride[0],
                        .add_to_x = a.add_to_x};
  for (const gemm::PackedWeight* w : {&p.gate_up, &p.down})
    ctx.cuda->weights.read({range_of(*w), {}}, ctx.cuda->dry);
  Workspace::Scope scope(ctx.workspace);
  p.workspace = scope.take<std::byte>(mlp_cuda::mlp_workspace_bytes(p));
  if (!ctx.cuda->dry) ctx.cuda->keep(mlp_cuda::launch_mlp(ctx.cuda->stream, p));
}

// Whether the shared expert was placed as one more of the others.
static bool lies_behind(const Weight& w, const gemm::PackedWeight& packed, const Weight& shared) {
  return !shared.empty() && shared.data == w.data + packed.expert_bytes() * packed.experts &&
         shared.dtype == w.dtype && shared.rows == w.rows && shared.cols == w.cols;
}

void moe(const OpContext& ctx, const MoeArgs& a) {
  moe_cuda::MoeParams p{.h = data<Bf16>(a.h),
                        .h_stride = a.h.stride[0],
                        .rows = narrow(a.h.dim(0)),
                        .experts = narrow(a.router.rows),
                        .top_k = a.top_k,
                        .router = packed(a.router),
                        .router_scale = a.router.scale,
                        .gate_up = packed_pair(a.gate),
                        .down = packed(a.down),
                        .gate_scale = a.gate.scale,
                        .up_scale = a.up.scale,
                        .down_scale = a.down.scale,
                        .x = data<float>(a.x),
                        .x_stride = a.x.stride[0],
                        .add_to_x = a.add_to_x,
                        .chosen = a.chosen.empty() ? nullptr : data<int32_t>(a.chosen),
                        .barrier = ctx.cuda->barrier()};
  if (lies_behind(a.gate, p.gate_up, a.shared_gate) && lies_behind(a.down, p.down, a.shared_down)) {
    ++p.gate_up.experts;
    ++p.down.experts;
    p.shared_router = a.shared_router.empty() ? nullptr : floats(a.shared_router);
  } else if (!a.shared_gate.empty()) {
    p.shared_gate_up = packed_pair(a.shared_gate);
    p.shared_down = packed(a.shared_down);
    p.shared_gate_scale = a.shared_gate.scale;
    p.shared_up_scale = a.shared_up.scale;
    p.shared_down_scale = a.shared_down.scale;
    p.shared_router = a.shared_router.empty() ? nullptr : floats(a.shared_router);
  }
  ctx.cuda->weights.read({range_of(p.router), {}}, ctx.cuda->dry);
  p.next = ctx.cuda->weights.next();
  Workspace::Scope scope(ctx.workspace);
  p.workspace = scope.take<std::byte>(moe_cuda::moe_workspace_bytes(p));
  if (!ctx.cuda->dry) ctx.cuda->keep(moe_cuda::launch_moe(ctx.cuda->stream, p));
}

void attention_prepare(const OpContext& ctx, const AttentionPrepareArgs& a) {
  if (ctx.cuda->dry) return;
  ctx.cuda->keep(
      launch_attention_prepare(ctx.cuda->stream, {.q_proj = data<bf16>(a.q_proj),
                                                  .k_proj = data<bf16>(a.k_proj),
                                                  .v_proj = data<bf16>(a.v_proj),
                                                  .q_stride = a.q_proj.stride[0],
                                                  .k_stride = a.k_proj.stride[0],
                                                  .v_stride = a.v_proj.stride[0],
                                                  .gated = !a.gate.empty(),
                                                  .q_norm = a.q_norm.empty() ? nullptr : floats(a.q_norm),
                                                  .k_norm = a.k_norm.empty() ? nullptr : floats(a.k_norm),
                                                  .eps = a.eps,
                                                  .n_rot = a.rope.n_rot,
                                                  .halves = a.rope.style == Rope::Style::kHalves,
                                                  .inv_freq = floats(a.rope.inv_freq),
                                                  .magnitude = a.rope.magnitude,
                                                  .segments = a.segments,
                                                  .rows = narrow(a.q.dim(0)),
                                                  .q_heads = narrow(a.q.dim(1)),
                                                  .kv_heads = narrow(a.kv.k.dim(1)),
                                                  .head_size = narrow(a.q.dim(2)),
                                                  .q = data<bf16>(a.q),
                                                  .gate = a.gate.empty() ? nullptr : data<bf16>(a.gate),
                                                  .kv = cache_of(a.kv)}));
}

void paged_attention(const OpContext& ctx, const PagedAttentionArgs& a) {
  AttentionParams p{.q = data<bf16>(a.q),
                    .out = data<bf16>(a.out),
                    .q_stride = a.q.stride[0],
                    .out_stride = a.out.stride[0],
                    .kv = cache_of(a.kv),
                    .segments = a.segments,
                    .q_heads = narrow(a.q.dim(1)),
                    .kv_heads = narrow(a.kv.k.dim(1)),
                    .head_size = narrow(a.q.dim(2)),
                    .scale = a.scale};
  if (!a.gate.empty())
    p.gate = data<bf16>(a.gate), p.gate_stride = a.gate.stride[0], p.gate_head_stride = a.gate.stride[1];
  const SegmentArray& s = a.segments;
  if (s.decodes > 0) {
    // Rounding each sequence up adds a part at most.
    const DecodeBounds bounds{.rows = std::max(1, s.decode_rows - s.decodes + 1),
                              .max_parts = s.decode_keys / kPartKeys + s.decodes};
    Workspace::Scope scope(ctx.workspace);
    std::byte* const scratch = scope.take<std::byte>(decode_attention_workspace_bytes(p, bounds));
    if (!ctx.cuda->dry) ctx.cuda->keep(launch_decode_attention(ctx.cuda->stream, p, bounds, scratch));
  }
  if (s.prompt_rows > 0 && !ctx.cuda->dry)
    ctx.cuda->keep(launch_prompt_attention(ctx.cuda->stream, p, s.prompt_rows));
}

void gated_delta_net(const OpContext& ctx, const GatedDeltaNetArgs& a) {
  const DeltaShape shape{
      .Hk = narrow(a.k.dim(1)), .Hv = narrow(a.v.dim(1)), .grouped = a.heads == HeadMap::kGrouped};
  const DeltaWeights weights{floats(a.conv_weight), floats(a.ssm_a), floats(a.dt_bias)};
  const DeltaSlots slots = slots_of(a.cache);
  const SegmentArray& s = a.segments;
  const cudaStream_t stream = ctx.cuda->stream;
  if (s.decodes > 0 && !ctx.cuda->dry)
    ctx.cuda->keep(launch_gdn_decode(stream, {.shape = shape,
                                              .weights = weights,
                                              .slots = slots,
                                              .segments = s,
                                              .states_at_rest = ctx.cuda->states_at_rest,
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
  if (s.prompt_rows == 0) return;
  Workspace::Scope scope(ctx.workspace);
  std::byte* const scratch =
      scope.take<std::byte>(gdn_chunked_workspace_bytes(shape, s.prompt_rows, s.count - s.decodes));
  if (ctx.cuda->dry) return;
  ctx.cuda->keep(launch_gdn_prepare(stream, {.shape = shape,
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
  ctx.cuda->keep(launch_gdn_chunked(stream, {.shape = shape,
                                             .slots = slots,
                                             .segments = s,
                                             .prompt_rows = s.prompt_rows,
                                             .q = data<Bf16>(a.q),
                                             .k = data<Bf16>(a.k),
                                             .v = data<Bf16>(a.v),
                                             .g = data<float>(a.g),
                                             .beta = data<float>(a.beta),
                                             .out = data<Bf16>(a.o),
                                             .workspace = scratch}));
  // Rows of prompts follow those of generated tokens.
  const int64_t first = s.decode_rows, rows = a.o.dim(0) - first;
  quire::gated_rms_norm(ctx, {.o = a.o.rows(first, rows),
                              .z = a.z.rows(first, rows),
                              .weight = a.norm_weight,
                              .eps = a.eps,
                              .y = a.y.rows(first, rows)});
}

void copy_slots(const OpContext& ctx, const CopySlotsArgs& a) {
  if (ctx.cuda->dry || a.pairs.dim(0) == 0)
    return;  // a model without recurrent states has a pool without slots
  ctx.cuda->keep(launch_copy_slots(ctx.cuda->stream,
                                   {.pool = a.pool.data,
                                    .slot_bytes = dtype_bytes(a.pool.dtype, a.pool.elems() / a.pool.dim(0)),
                                    .slot_stride = dtype_bytes(a.pool.dtype, a.pool.stride[0]),
                                    .pairs = data<int32_t>(a.pairs),
                                    .count = narrow(a.pairs.dim(0))}));
}

void sample(const OpContext& ctx, const SampleArgs& a) {
  const int32_t rows = narrow(a.logits.dim(0)), vocab = narrow(a.logits.dim(1));
  Workspace::Scope scope(ctx.workspace);
  std::byte* const scratch = scope.take<std::byte>(sample_workspace_bytes(rows, vocab));
  if (ctx.cuda->dry) return;
  ctx.cuda->keep(launch_sample(ctx.cuda->stream,
                               {.logits = floats(a.logits),
                                .logits_stride = a.logits.stride[0],
                                .rows = rows,
                                .vocab = vocab,
                                .row = a.rows,
                                .bias_ids = a.bias_ids,
                                .bias_values = a.bias_values,
                                .suppressed = a.suppressed,
                                .suppressed_count = a.suppressed_count,
                                .history = a.history,
                                .tokens = data<int32_t>(a.out.tokens),
                                .logprobs = data<float>(a.out.logprobs),
                                .top_ids = data<int32_t>(a.out.top_ids),
                                .top_logprobs = data<float>(a.out.top_logprobs),
                                .top_count = data<int32_t>(a.out.top_count),
                                .ranks = a.out.ranks.empty() ? nullptr : data<int32_t>(a.out.ranks),
                                .max_top = narrow(a.out.top_ids.dim(1)),
                                .sampled = a.out.sampled.empty() ? nullptr : data<int32_t>(a.out.sampled)},
                               scratch));
}

void note_tokens(const OpContext& ctx, const NoteTokensArgs& a) {
  if (ctx.cuda->dry || a.range_count == 0) return;
  ctx.cuda->keep(launch_note_tokens(
      ctx.cuda->stream,
      {.tokens = a.tokens, .ranges = a.ranges, .range_count = a.range_count, .history = a.history}));
}

}  // namespace quire::cuda
