#include "parts/attention/attention.h"

#include "ops/linear/linear.h"

namespace quire {

using enum TensorRole;

namespace {

// Keys and values, where no tensor holds the queries' projection as well.
Status load_kv(WeightLoader& w, const Architecture& row, int64_t block, Mixer mixer, AttentionWeights& a) {
  QUIRE_TRY(a.k, w.matrix(kAttnK, block));
  if (!row.keys_as_values || mixer == Mixer::kWindowAttention || w.has(kAttnV, block)) {
    QUIRE_TRY(a.v, w.matrix(kAttnV, block));
  }
  QUIRE_TRY(a.k_bias, w.optional_vector(kAttnKBias, block));
  QUIRE_TRY(a.v_bias, w.optional_vector(kAttnVBias, block));
  return {};
}

// The three projections in one tensor.
Status load_fused(WeightLoader& w, int64_t block, AttentionWeights& a) {
  QUIRE_TRY(const Weight fused, w.matrix(kAttnQkv, block));
  const int64_t q_rows = size_of(Extent::kQueryRows, w.sizes()), kv_rows = size_of(Extent::kKvHeads, w.sizes());
  a.q = fused.row_slice(0, q_rows);
  a.k = fused.row_slice(q_rows, kv_rows);
  a.v = fused.row_slice(q_rows + kv_rows, kv_rows);
  QUIRE_TRY(const Tensor bias, w.optional_vector(kAttnQkvBias, block));
  if (bias.empty()) return {};
  a.q_bias = bias.rows(0, q_rows);
  a.k_bias = bias.rows(q_rows, kv_rows);
  a.v_bias = bias.rows(q_rows + kv_rows, kv_rows);
  return {};
}

// Contiguous rows of a layer with such heads, at the beginning of the memory of wider ones.
AttentionRows rows_of(const AttentionRows& widest, int64_t heads, const HeadShape& shape) {
  const int64_t rows = widest.q.dim(0), d = shape.head_dim;
  const auto of = [&](const Tensor& t, std::initializer_list<int64_t> dims) {
    return t.empty() ? Tensor{} : make_tensor(t.data, t.dtype, dims);
  };
  const bool gated = !widest.gate.empty();
  return {.q_proj = of(widest.q_proj, {rows, gated ? 2 * heads * d : heads * d}),
          .k_proj = of(widest.k_proj, {rows, shape.kv_heads * d}),
          .v_proj = of(widest.v_proj, {rows, shape.kv_heads * d}),
          .q = of(widest.q, {rows, heads, d}),
          .gate = of(widest.gate, {rows, heads, d}),
          .mix = widest.mix.cols(0, heads * d)};
}

}  // namespace

Result<AttentionWeights> load_attention(WeightLoader& w, const Architecture& row, const AttentionSpec& spec,
                                        int64_t block, Mixer mixer, bool own_kv) {
  AttentionWeights a;
  if (own_kv && (w.has(kAttnQkv, block) || (row.fused_qkv && !w.has(kAttnQ, block)))) {
    QUIRE_CHECKED(load_fused(w, block, a));
  } else {
    QUIRE_TRY(a.q, w.matrix(kAttnQ, block));
    QUIRE_TRY(a.q_bias, w.optional_vector(kAttnQBias, block));
    if (own_kv) QUIRE_CHECKED(load_kv(w, row, block, mixer, a));
  }
  QUIRE_TRY(a.out, w.matrix(kAttnOutput, block));
  QUIRE_TRY(a.out_bias, w.optional_vector(kAttnOutputBias, block));
  if (spec.qk_norm) {
    QUIRE_TRY(a.q_norm, w.vector(kAttnQNorm, block));
  }
  if (spec.qk_norm && own_kv) {
    QUIRE_TRY(a.k_norm, w.vector(kAttnKNorm, block));
  }
  if (spec.value_norm && own_kv) a.v_norm = w.ones(spec.heads_of(mixer).head_dim);
  if (spec.sinks) {
    QUIRE_TRY(a.sinks, w.vector(kAttnSinks, block));
  }
  return a;
}

AttentionActivations lay_out(const AttentionSpec& a, ActivationMemory& mem, const Tensor& mix) {
  const int64_t heads = a.query_width(), kv = a.kv_width();
  const AttentionRows widest{.q_proj = mem.act(a.gated_query ? 2 * heads : heads),
                             .k_proj = mem.act(kv),
                             .v_proj = mem.act(kv),
                             .q = mem.act(heads),
                             .gate = a.gated_query ? mem.act(heads) : Tensor{},
                             .mix = mix};
  return {.all = rows_of(widest, a.heads, a.heads_of(Mixer::kAttention)),
          .window = rows_of(widest, a.heads, a.heads_of(Mixer::kWindowAttention))};
}

void attention(const LayerPass& pass, const AttentionSpec& a, const AttentionWeights& w, const AttentionContext& c,
               const AttentionRows& r, const Tensor& h, const PartOutput& to) {
  const LinearPart parts[] = {{.w = w.q, .bias = w.q_bias, .y = r.q_proj},
                              {.w = w.k, .bias = w.k_bias, .y = r.k_proj},
                              {.w = w.v, .bias = w.v_bias, .y = r.v_proj}};
  // Without weights of their own, values are what keys are projected to, and both are those of another layer.
  const Tensor keys = w.k.empty() ? Tensor{} : r.k_proj, values = w.v.empty() ? keys : r.v_proj;
  const bool turns_by_axes = !c.coordinates.empty() && !c.rope.axes.empty();
  Rope rope = c.rope;
  if (!turns_by_axes) rope.axes = {};
  const size_t products = w.k.empty() ? 1 : w.v.empty() ? 2 : 3;
  linear(
      pass.ctx,
      {.x = h, .parts = std::span(parts).first(products), .latency_rows = pass.latency_rows, .rounded = pass.rounded});
  attention_prepare(pass.ctx, {.q_proj = r.q_proj,
                               .k_proj = keys,
                               .v_proj = values,
                               .q_norm = w.q_norm,
                               .k_norm = w.k_norm,
                               .v_norm = w.v_norm,
                               .eps = pass.eps,
                               .rope = rope,
                               .segments = c.segments,
                               .q = r.q,
                               .gate = r.gate,
                               .kv = c.kv,
                               .coordinates = turns_by_axes ? c.coordinates : Tensor{}});
  if (pass.caches_only) return;
  paged_attention(pass.ctx, {.q = r.q,
                             .gate = r.gate,
                             .kv = c.kv,
                             .segments = c.segments,
                             .scale = a.scale,
                             .out = r.mix,
                             .window = c.window,
                             .sinks = w.sinks,
                             .ends = c.ends});
  pass.show("attn_mix", r.mix);
  linear(pass.ctx, {.x = r.mix,
                    .parts = {{.w = w.out, .bias = w.out_bias, .y = to.x, .add_to_y = to.add}},
                    .latency_rows = pass.latency_rows,
                    .rounded = pass.rounded});
}

}  // namespace quire
