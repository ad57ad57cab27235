#include "ops/attention/cuda/kernels.h"

#include <algorithm>

#include "ops/attention/cuda/attention.h"
#include "ops/cuda/arguments.h"
#include "ops/cuda/context.h"

namespace quire::cuda {
namespace {

KvCache cache_of(const KvLayer& kv) {
  return {kv.k.data, kv.v.data, dtype_bytes(kv.k.dtype, kv.k.stride[0]),
          kv.k.dtype == DType::kF8E4M3 ? KvFormat::kE4m3 : KvFormat::kBf16};
}

bool are_bf16(std::initializer_list<const Tensor*> tensors) {
  return std::all_of(tensors.begin(), tensors.end(),
                     [](const Tensor* t) { return t->empty() || t->dtype == DType::kBF16; });
}

bool attention_fits(const PagedAttentionArgs& a) {
  const SegmentArray& s = a.segments;
  return a.window <= INT32_MAX && are_bf16({&a.q, &a.gate, &a.out}) && attention_takes_head_size(narrow(a.q.dim(2))) &&
         s.decodes <= kMaxAttentionSegments && s.count - s.decodes <= kMaxAttentionSegments && a.scale > 0 &&
         aligned_rows(a.q, 8) && aligned_rows(a.out, 8) &&
         (a.gate.empty() || (a.gate.stride[0] % 8 == 0 && a.gate.stride[1] % 8 == 0));
}

template <Status (*kPrompts)(cudaStream_t, const AttentionParams&, int)>
void attention(const OpContext& ctx, const PagedAttentionArgs& a) {
  Context& c = context_of(ctx);
  AttentionParams p{.q = data<bf16>(a.q),
                    .out = data<bf16>(a.out),
                    .q_stride = a.q.stride[0],
                    .out_stride = a.out.stride[0],
                    .kv = cache_of(a.kv),
                    .segments = a.segments,
                    .q_heads = narrow(a.q.dim(1)),
                    .kv_heads = narrow(a.kv.k.dim(1)),
                    .head_size = narrow(a.q.dim(2)),
                    .scale = a.scale,
                    .window = narrow(a.window),
                    .sinks = a.sinks.empty() ? nullptr : floats(a.sinks),
                    .ends = a.ends.empty() ? nullptr : data<int32_t>(a.ends)};
  if (!a.gate.empty())
    p.gate = data<bf16>(a.gate), p.gate_stride = a.gate.stride[0], p.gate_head_stride = a.gate.stride[1];
  const SegmentArray& s = a.segments;
  if (s.decodes > 0) {
    // Rounding each sequence up adds a part at most, and a window that ends within a part begins within another.
    int64_t parts = s.decode_keys / kPartKeys + s.decodes;
    if (p.window > 0) parts = std::min(parts, s.decodes * ((int64_t{p.window} + s.most_rows) / kPartKeys + 2));
    const DecodeBounds bounds{.rows = s.most_rows, .max_parts = parts};
    Workspace::Scope scope(ctx.workspace);
    std::byte* const scratch = scope.take<std::byte>(decode_attention_workspace_bytes(p, bounds));
    if (!c.dry) c.keep(launch_decode_attention(c.stream, p, bounds, scratch));
  }
  if (s.prompt_rows > 0 && !c.dry) c.keep(kPrompts(c.stream, p, s.prompt_rows));
}

}  // namespace

bool attention_prepare_fits(const Machine&, const AttentionPrepareArgs& a) {
  return are_bf16({&a.q_proj, &a.k_proj, &a.v_proj, &a.q, &a.gate}) && a.kv.k.dtype != DType::kF32 &&
         attention_takes_head_size(narrow(a.q.dim(2))) && aligned_rows(a.q_proj, 8) && aligned_rows(a.k_proj, 8) &&
         aligned_rows(a.v_proj, 8) && (a.coordinates.empty() || a.coordinates.stride[0] == 3);
}

void attention_prepare(const OpContext& ctx, const AttentionPrepareArgs& a) {
  Context& c = context_of(ctx);
  if (c.dry) return;
  c.keep(
      launch_attention_prepare(c.stream, {.q_proj = data<bf16>(a.q_proj),
                                          .k_proj = data<bf16>(a.k_proj),
                                          .v_proj = data<bf16>(a.v_proj),
                                          .q_stride = a.q_proj.stride[0],
                                          .k_stride = a.k_proj.stride[0],
                                          .v_stride = a.v_proj.stride[0],
                                          .gated = !a.gate.empty(),
                                          .q_norm = a.q_norm.empty() ? nullptr : floats(a.q_norm),
                                          .k_norm = a.k_norm.empty() ? nullptr : floats(a.k_norm),
                                          .v_norm = a.v_norm.empty() ? nullptr : floats(a.v_norm),
                                          .eps = a.eps,
                                          .n_rot = a.rope.n_rot,
                                          .halves = a.rope.style == Rope::Style::kHalves,
                                          .inv_freq = floats(a.rope.inv_freq),
                                          .magnitude = a.rope.magnitude,
                                          .axes = a.coordinates.empty() ? nullptr : data<int32_t>(a.rope.axes),
                                          .coordinates = a.coordinates.empty() ? nullptr : data<int32_t>(a.coordinates),
                                          .segments = a.segments,
                                          .rows = narrow(a.q.dim(0)),
                                          .q_heads = narrow(a.q.dim(1)),
                                          .kv_heads = a.k_proj.empty() ? 0 : narrow(a.kv.k.dim(1)),
                                          .head_size = narrow(a.q.dim(2)),
                                          .q = data<bf16>(a.q),
                                          .gate = a.gate.empty() ? nullptr : data<bf16>(a.gate),
                                          .kv = cache_of(a.kv)}));
}

bool attention_wgmma_fits(const Machine&, const PagedAttentionArgs& a) {
  return attention_fits(a) && a.q.dim(2) < kWideHeadSize &&
         (a.kv.k.dtype == DType::kBF16 || a.kv.k.dtype == DType::kF8E4M3);
}
void attention_wgmma(const OpContext& ctx, const PagedAttentionArgs& a) {
  attention<launch_prompt_wgmma>(ctx, a);
}

bool attention_mma_fits(const Machine&, const PagedAttentionArgs& a) {
  return attention_fits(a) && a.q.dim(2) < kWideHeadSize && a.kv.k.dtype == DType::kBF16;
}
void attention_mma(const OpContext& ctx, const PagedAttentionArgs& a) {
  attention<launch_prompt_mma>(ctx, a);
}

bool attention_wide_fits(const Machine& m, const PagedAttentionArgs& a) {
  return attention_fits(a) && a.q.dim(2) == kWideHeadSize &&
         (a.kv.k.dtype == DType::kBF16 || (a.kv.k.dtype == DType::kF8E4M3 && m.gpu.wgmma));
}
void attention_wide(const OpContext& ctx, const PagedAttentionArgs& a) {
  attention<launch_prompt_wide>(ctx, a);
}

}  // namespace quire::cuda
