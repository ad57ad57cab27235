#include "model/decoder.h"

#include <algorithm>
#include <cmath>

#include "model/activations.h"
#include "ops/gated_delta/gated_delta.h"
#include "ops/linear/linear.h"
#include "ops/mlp/mlp.h"
#include "ops/moe/moe.h"
#include "ops/norm/norm.h"
#include "ops/rows/rows.h"

namespace quire {

int64_t logits_slice(int64_t vocab) {
  return std::clamp<int64_t>((int64_t{1} << 24) / vocab / kChunkTokens * kChunkTokens, kChunkTokens, 512);
}

// What all layers of one pass share.
struct Decoder::Pass {
  const OpContext& ctx;
  const StepBatch& step;
  const CacheViews& cache;
  const ForwardOptions& options;
  int layers;

  int64_t latency_rows() const { return options.latency ? step.shape.decode_rows : 0; }
  // The last layer's caches are written, and nothing else is wanted.
  bool ends_at(int layer) const { return options.caches_only && layer + 1 == layers; }
  void probe(std::string_view name, int layer, const Tensor& value) const {
    if (options.probe != nullptr) (*options.probe)(name, layer, value);
  }
};

// Those of a layer of attention: heads may be others where a layer attends to a window.
struct Decoder::AttentionRows {
  Tensor q_proj, k_proj, v_proj;  // [T, H d] (gated: [T, 2 H d], query and gate per head), [T, Hkv d] twice
  Tensor q, gate;                 // [T, H, d]
  Tensor mix;                     // [T, H d], columns of Activations::mix
};

// The intermediates of a step. Those of a kind of layer that the model has not are empty.
struct Decoder::Activations {
  Tensor x;    // [T, D] f32 residual stream
  Tensor h;    // [T, D] normalised input of a sub-block
  Tensor mix;  // [T, H d] or [T, Hv Dv]: what a mixer puts out before its last projection
  AttentionRows attention, window_attention;  // in the same memory
  // Gated delta net.
  Tensor qkv, z;      // projections: [T, C], [T, Hv Dv]
  Tensor a, b;        // [T, Hv] f32
  Tensor dq, dk, dv;  // [T, Hk, Dk], [T, Hk, Dk], [T, Hv, Dv]
  Tensor g, beta;     // [T, Hv] f32
  Tensor o;           // [T, Hv, Dv] before the gated norm
  Tensor delta_mix;   // [T, Hv Dv], columns of mix
  // Where what a part adds is normalised first: before and after that.
  Tensor part, normed;  // [T, D] f32
  // Of a dense feed-forward beside experts: what the router reads, and the normalised results of both.
  Tensor router_h;  // [T, D]
  Tensor both;      // [2, T, D] f32
  // Of embeddings that each layer has of its own: those of all layers, and a layer's gate before and after its product.
  Tensor per_layer;        // [T, L P] f32
  Tensor per_layer_gate;   // [T, P] f32
  Tensor per_layer_gated;  // [T, P]
};

// Where a part's last projection goes: it is added to the residual stream, or written to where it is normalised.
struct Decoder::Target {
  Tensor x;
  bool add = true;
};

// Contiguous rows of a layer with such heads, at the beginning of the memory of wider ones.
Decoder::AttentionRows Decoder::rows_of(const AttentionRows& widest, const HeadShape& shape) const {
  const int64_t rows = widest.q.dim(0), h = config_->attention.heads, d = shape.head_dim;
  const auto of = [&](const Tensor& t, std::initializer_list<int64_t> dims) {
    return t.empty() ? Tensor{} : make_tensor(t.data, t.dtype, dims);
  };
  const bool gated = !widest.gate.empty();
  return {.q_proj = of(widest.q_proj, {rows, gated ? 2 * h * d : h * d}),
          .k_proj = of(widest.k_proj, {rows, shape.kv_heads * d}),
          .v_proj = of(widest.v_proj, {rows, shape.kv_heads * d}),
          .q = of(widest.q, {rows, h, d}),
          .gate = of(widest.gate, {rows, h, d}),
          .mix = widest.mix.cols(0, h * d)};
}

Decoder::Activations Decoder::lay_out(Workspace::Scope& scope, DType activation, int64_t rows) const {
  ActivationMemory mem(scope, activation, rows);
  const AttentionSpec& at = config_->attention;
  const DeltaSpec& n = config_->delta;
  const bool attends = config_->attention_layers() > 0, recurrent = config_->has_state();
  const HeadShape all = config_->heads_of(Mixer::kAttention), window = config_->heads_of(Mixer::kWindowAttention);
  const int64_t heads = attends ? int64_t{at.heads} * std::max(all.head_dim, window.head_dim) : 0;
  const int64_t inner = recurrent ? int64_t{n.value_heads} * n.value_dim : 0;
  Activations s;
  s.x = mem.f32(config_->d_model);
  s.h = mem.act(config_->d_model);
  s.mix = mem.act(std::max(heads, inner));
  if (attends) {
    const int64_t kv = std::max(int64_t{all.kv_heads} * all.head_dim, int64_t{window.kv_heads} * window.head_dim);
    const AttentionRows widest{.q_proj = mem.act(at.gated_query ? 2 * heads : heads),
                               .k_proj = mem.act(kv),
                               .v_proj = mem.act(kv),
                               .q = mem.act(heads),
                               .gate = at.gated_query ? mem.act(heads) : Tensor{},
                               .mix = s.mix};
    s.attention = rows_of(widest, all);
    s.window_attention = rows_of(widest, window);
  }
  if (config_->d_per_layer > 0) {
    s.per_layer = mem.f32(config_->layers * config_->d_per_layer);
    s.per_layer_gate = mem.f32(config_->d_per_layer);
    s.per_layer_gated = mem.act(config_->d_per_layer);
  }
  if (config_->norms_after) s.part = mem.f32(config_->d_model), s.normed = mem.f32(config_->d_model);
  if (config_->ffn.beside_experts) {
    s.router_h = mem.act(config_->d_model);
    s.both = make_tensor(mem.f32(2 * config_->d_model).data, DType::kF32, {2, rows, config_->d_model});
  }
  if (recurrent) {
    s.delta_mix = s.mix.cols(0, inner);
    s.qkv = mem.act(n.conv_channels());
    s.z = mem.act(inner);
    s.a = mem.f32(n.value_heads);
    s.b = mem.f32(n.value_heads);
    s.dq = mem.act(n.key_heads, n.key_dim);
    s.dk = mem.act(n.key_heads, n.key_dim);
    s.dv = mem.act(n.value_heads, n.value_dim);
    s.g = mem.f32(n.value_heads);
    s.beta = mem.f32(n.value_heads);
    s.o = mem.act(n.value_heads, n.value_dim);
  }
  return s;
}

// The residual stream x [T, D] before the first layer.
void Decoder::input(const Pass& pass, const Tensor& x) const {
  const OpContext& ctx = pass.ctx;
  const StepBatch& step = pass.step;
  const auto look_up = [&](const Tensor& to) {
    embed(
        ctx,
        {.tokens = step.tokens(), .sources = step.sources(), .sampled = step.sampled, .table = w_.embedding, .x = to});
  };
  const MtpInput& in = w_.input;
  if (in.projection.empty()) return look_up(x);
  Workspace::Scope ws(ctx.workspace);
  const int64_t rows = x.dim(0), d = x.dim(1);
  const Tensor e = make_tensor(ws.take<float>(rows * d), {rows, d});
  const DType act = activation_type(ctx.machine.device);
  const Tensor both = make_tensor(ws.take<std::byte>(dtype_bytes(act, 2 * rows * d)), act, {rows, 2 * d});
  look_up(e);
  add_rms_norm(ctx, {.x = e, .add = {}, .weight = in.embedding_norm, .eps = config_->eps, .h = both.cols(0, d)});
  add_rms_norm(ctx, {.x = step.hidden, .add = {}, .weight = in.hidden_norm, .eps = config_->eps, .h = both.cols(d, d)});
  linear(ctx, {.x = both, .parts = {{.w = in.projection, .y = x}}, .latency_rows = pass.latency_rows()});
}

// What the layers have of the step's tokens by themselves (s.per_layer): the tokens' rows in the table, and what their
// embeddings in s.x are projected to, normalised layer by layer; the sum of both times the root of 1/2.
void Decoder::per_layer_input(const Pass& pass, const Activations& s) const {
  if (config_->d_per_layer == 0) return;
  const OpContext& ctx = pass.ctx;
  const StepBatch& step = pass.step;
  const int64_t rows = s.x.dim(0), d = s.x.dim(1), layers = config_->layers, width = layers * config_->d_per_layer;
  Workspace::Scope ws(ctx.workspace);
  const Tensor other = make_tensor(ws.take<float>(rows * width), {rows, width});
  const auto by_layer = [&](const Tensor& t) { return t.reshaped({rows * layers, config_->d_per_layer}); };
  // The embeddings as products take them: nothing is added up here.
  reduce_partials(ctx, {.partials = s.x.reshaped({1, rows, d}), .x = s.normed, .add_to_x = false, .h = s.h});
  linear(ctx, {.x = s.h, .parts = {{.w = w_.per_layer.projection, .y = other}}, .latency_rows = pass.latency_rows()});
  add_rms_norm(
      ctx,
      {.x = by_layer(other), .add = {}, .weight = w_.per_layer.norm, .eps = config_->eps, .h = by_layer(s.per_layer)});
  embed(ctx, {.tokens = step.tokens(),
              .sources = step.sources(),
              .sampled = step.sampled,
              .table = w_.per_layer.table,
              .x = other});
  reduce_partials(ctx, {.partials = other.reshaped({1, rows, width}), .x = s.per_layer, .scale = std::sqrt(0.5f)});
  pass.probe("per_layer_input", -1, s.per_layer);
}

void Decoder::forward(const OpContext& ctx, const StepBatch& step, const CacheViews& cache,
                      const ForwardOptions& options, const ForwardOutputs& out) const {
  Workspace::Scope scope(ctx.workspace);
  const Pass pass{ctx, step, cache, options, static_cast<int>(w_.layers.size())};
  const Activations s = lay_out(scope, activation_type(ctx.machine.device), step.rows());
  input(pass, s.x);
  pass.probe("embed", -1, s.x);
  per_layer_input(pass, s);
  // So far: caches are counted by kind. A layer without keys of its own attends to the newest ones of its kind.
  int kv_layers = w_.first_kv_layer, delta_layers = 0, newest_kv[2] = {};
  for (int i = 0; i < std::ssize(w_.layers); ++i) {
    const LayerWeights& l = w_.layers[static_cast<size_t>(i)];
    const Target to = config_->norms_after ? Target{s.part, false} : Target{s.x, true};
    add_rms_norm(ctx, {.x = s.x, .add = {}, .weight = l.mixer_norm, .eps = config_->eps, .h = s.h});
    pass.probe("attn_norm", i, s.h);
    if (const auto* delta = std::get_if<DeltaWeights>(&l.mixer)) {
      delta_net(pass, i, *delta, cache.state(delta_layers++), to, s);
    } else {
      const auto& weights = std::get<AttentionWeights>(l.mixer);
      int& kv = newest_kv[windowed(i) ? 1 : 0];
      if (!weights.k.empty()) kv = kv_layers++;
      attention(pass, i, weights, kv, to, s);
    }
    if (pass.ends_at(i)) return;
    add_normed(pass, l.mixer_out_norm, 1.0f, to, s);
    pass.probe("attn_out", i, s.x);
    add_rms_norm(ctx, {.x = s.x, .add = {}, .weight = l.ffn_norm, .eps = config_->eps, .h = s.h});
    pass.probe("ffn_norm", i, s.h);
    feed_forward(pass, i, l.ffn, to, s);
    const bool more = config_->d_per_layer > 0;
    add_normed(pass, l.ffn_out_norm, more ? 1.0f : l.out_scale, to, s, more ? s.h : Tensor{});
    if (more) per_layer_output(pass, i, l, to, s);
    pass.probe("layer_out", i, s.x);
  }
  head(pass, s.x, out);
}

// Adds what the layer's own embedding gives the residual stream, which is in s.h as well.
void Decoder::per_layer_output(const Pass& pass, int layer, const LayerWeights& l, const Target& to,
                               const Activations& s) const {
  pass.probe("ffn_out", layer, s.x);
  const PerLayerWeights& w = l.per_layer;
  const int64_t width = config_->d_per_layer;
  linear(pass.ctx, {.x = s.h, .parts = {{.w = w.gate, .y = s.per_layer_gate}}, .latency_rows = pass.latency_rows()});
  gated_product(pass.ctx, {.gate = s.per_layer_gate,
                           .up = s.per_layer.cols(layer * width, width),
                           .y = s.per_layer_gated,
                           .activation = config_->ffn.activation});
  pass.probe("per_layer_gated", layer, s.per_layer_gated);
  linear(pass.ctx, {.x = s.per_layer_gated, .parts = {{.w = w.out, .y = s.part}}, .latency_rows = pass.latency_rows()});
  add_normed(pass, w.norm, l.out_scale, to, s);
}

// What a part left in s.part, normalised and added to the residual stream, which is multiplied by `scale` then. `h`, if
// not empty, takes the stream as products want it.
void Decoder::add_normed(const Pass& pass, const Tensor& norm, float scale, const Target& to, const Activations& s,
                         const Tensor& h) const {
  if (to.add) return;
  add_rms_norm(pass.ctx, {.x = s.part, .add = {}, .weight = norm, .eps = config_->eps, .h = s.normed});
  const int64_t rows = s.x.dim(0), d = s.x.dim(1);
  reduce_partials(pass.ctx, {.partials = s.normed.reshaped({1, rows, d}), .x = s.x, .scale = scale, .h = h});
}

// The attention part of block `layer`.
void Decoder::attention(const Pass& pass, int layer, const AttentionWeights& w, int kv, const Target& to,
                        const Activations& s) const {
  const AttentionSpec& spec = config_->attention;
  const bool window = windowed(layer);
  const AttentionRows& r = window ? s.window_attention : s.attention;
  const SegmentArray segments = pass.step.segments_in(pass.cache.kv_pool(kv));
  const LinearPart parts[] = {{.w = w.q, .bias = w.q_bias, .y = r.q_proj},
                              {.w = w.k, .bias = w.k_bias, .y = r.k_proj},
                              {.w = w.v, .bias = w.v_bias, .y = r.v_proj}};
  // Without weights of their own, values are what keys are projected to, and both are those of another layer.
  const Tensor keys = w.k.empty() ? Tensor{} : r.k_proj, values = w.v.empty() ? keys : r.v_proj;
  const size_t products = w.k.empty() ? 1 : w.v.empty() ? 2 : 3;
  linear(pass.ctx, {.x = s.h, .parts = std::span(parts).first(products), .latency_rows = pass.latency_rows()});
  attention_prepare(pass.ctx, {.q_proj = r.q_proj,
                               .k_proj = keys,
                               .v_proj = values,
                               .q_norm = w.q_norm,
                               .k_norm = w.k_norm,
                               .v_norm = w.v_norm,
                               .eps = config_->eps,
                               .rope = window ? w_.local_rope : w_.rope,
                               .segments = segments,
                               .q = r.q,
                               .gate = r.gate,
                               .kv = pass.cache.kv(kv)});
  if (pass.ends_at(layer)) return;
  paged_attention(pass.ctx, {.q = r.q,
                             .gate = r.gate,
                             .kv = pass.cache.kv(kv),
                             .segments = segments,
                             .scale = spec.scale,
                             .out = r.mix,
                             .window = window ? spec.window : 0,
                             .sinks = w.sinks});
  pass.probe("attn_mix", layer, r.mix);
  linear(pass.ctx, {.x = r.mix,
                    .parts = {{.w = w.out, .bias = w.out_bias, .y = to.x, .add_to_y = to.add}},
                    .latency_rows = pass.latency_rows()});
}

// The delta-net part of block `layer`.
void Decoder::delta_net(const Pass& pass, int layer, const DeltaWeights& w, const DeltaState& state, const Target& to,
                        const Activations& s) const {
  const OpContext& ctx = pass.ctx;
  linear(ctx,
         {.x = s.h,
          .parts = {{.w = w.qkv, .y = s.qkv}, {.w = w.z, .y = s.z}, {.w = w.alpha, .y = s.a}, {.w = w.beta, .y = s.b}},
          .latency_rows = pass.latency_rows()});
  gated_delta_net(ctx, {.qkv = s.qkv,
                        .z = s.z,
                        .a = s.a,
                        .b = s.b,
                        .conv_weight = w.conv,
                        .ssm_a = w.a,
                        .dt_bias = w.dt_bias,
                        .norm_weight = w.norm,
                        .eps = config_->eps,
                        .heads = config_->delta.grouped ? HeadMap::kGrouped : HeadMap::kTiled,
                        .cache = state,
                        .segments = pass.step.segments,
                        .q = s.dq,
                        .k = s.dk,
                        .v = s.dv,
                        .g = s.g,
                        .beta = s.beta,
                        .o = s.o,
                        .y = s.delta_mix});
  pass.probe("delta_out", layer, s.o);
  pass.probe("attn_mix", layer, s.delta_mix);
  linear(
      ctx,
      {.x = s.delta_mix, .parts = {{.w = w.out, .y = to.x, .add_to_y = to.add}}, .latency_rows = pass.latency_rows()});
}

// The feed-forward part of a block.
void Decoder::feed_forward(const Pass& pass, int layer, const FeedForwardWeights& f, const Target& to,
                           const Activations& s) const {
  if (const auto* dense = std::get_if<DenseWeights>(&f)) return dense_mlp(pass, *dense, s.h, to);
  if (const auto* both = std::get_if<ParallelWeights>(&f)) return parallel_mlps(pass, layer, *both, to, s);
  expert_mlps(pass, std::get<ExpertWeights>(f), s.h, {}, to);
}

// The dense one from s.h, the experts from the residual stream; both results are normalised, then added up.
void Decoder::parallel_mlps(const Pass& pass, int layer, const ParallelWeights& w, const Target& to,
                            const Activations& s) const {
  const auto normed = [&](const Tensor& x, const Tensor& norm, const Tensor& h) {
    add_rms_norm(pass.ctx, {.x = x, .add = {}, .weight = norm, .eps = config_->eps, .h = h});
  };
  const int64_t rows = s.x.dim(0), d = s.x.dim(1);
  const auto result = [&](int64_t i) { return make_tensor(s.both.as<float>() + i * rows * d, {rows, d}); };
  dense_mlp(pass, w.dense, s.h, {s.part, false});
  normed(s.part, w.dense_out_norm, result(0));
  normed(s.x, w.router_norm, s.router_h);
  normed(s.x, w.experts_norm, s.h);
  pass.probe("router_norm", layer, s.router_h);
  pass.probe("experts_norm", layer, s.h);
  expert_mlps(pass, w.experts, s.h, s.router_h, {s.part, false});
  normed(s.part, w.experts_out_norm, result(1));
  reduce_partials(pass.ctx, {.partials = s.both, .x = to.x, .add_to_x = to.add});
}

void Decoder::dense_mlp(const Pass& pass, const DenseWeights& w, const Tensor& h, const Target& to) const {
  swiglu_mlp(pass.ctx, {.h = h,
                        .gate = w.gate,
                        .up = w.up,
                        .down = w.down,
                        .gate_bias = w.gate_bias,
                        .up_bias = w.up_bias,
                        .down_bias = w.down_bias,
                        .x = to.x,
                        .add_to_x = to.add,
                        .activation = config_->ffn.activation,
                        .latency_rows = pass.latency_rows()});
}

// `router_h`: what the router reads, if not h.
void Decoder::expert_mlps(const Pass& pass, const ExpertWeights& experts, const Tensor& h, const Tensor& router_h,
                          const Target& to) const {
  ExpertChoice choice = config_->ffn.choice;
  choice.selection_bias = experts.selection_bias;
  moe(pass.ctx, {.h = h,
                 .router_h = router_h,
                 .router = experts.router,
                 .gate = experts.gate,
                 .up = experts.up,
                 .down = experts.down,
                 .router_bias = experts.router_bias,
                 .gate_bias = experts.gate_bias,
                 .up_bias = experts.up_bias,
                 .down_bias = experts.down_bias,
                 .activation = config_->ffn.activation,
                 .top_k = config_->ffn.top_k,
                 .choice = choice,
                 .shared_gate = experts.shared_gate,
                 .shared_up = experts.shared_up,
                 .shared_down = experts.shared_down,
                 .shared_router = experts.shared_router,
                 .x = to.x,
                 .add_to_x = to.add,
                 .chosen = {},
                 .latency_rows = pass.latency_rows()});
}

// Of the residual stream x [T, D]: final norm and head for the rows that want logits, the norm alone for those whose
// hidden states are wanted.
void Decoder::head(const Pass& pass, const Tensor& x, const ForwardOutputs& out) const {
  hidden_states(pass, x, out.hidden);
  if (!out.states.empty())
    add_rms_norm(pass.ctx, {.x = x, .add = {}, .weight = w_.output_norm, .eps = config_->eps, .h = out.states});
  const StepShape& s = pass.step.shape;
  if (s.logit_rows > 0)
    logits(pass, x, pass.step.logit_rows(), pass.options.latency ? s.decode_logit_rows : 0, out.logits);
  if (s.scored_rows > 0 && out.scored != nullptr) scored_logits(pass, x, *out.scored);
}

// Of some rows of x; the first `latency_rows` of them in the arithmetic for latency.
void Decoder::logits(const Pass& pass, const Tensor& x, const Tensor& rows, int64_t latency_rows,
                     const Tensor& out) const {
  const OpContext& ctx = pass.ctx;
  const int64_t count = rows.dim(0), d = config_->d_model;
  Workspace::Scope ws(ctx.workspace);
  const Tensor last = make_tensor(ws.take<float>(count * d), {count, d});
  const DType act = activation_type(ctx.machine.device);
  const Tensor h = make_tensor(ws.take<std::byte>(dtype_bytes(act, count * d)), act, {count, d});
  gather_rows(ctx, {.x = x, .rows = rows, .y = last});
  add_rms_norm(ctx, {.x = last, .add = {}, .weight = w_.output_norm, .eps = config_->eps, .h = h});
  linear(ctx, {.x = h, .parts = {{.w = w_.head, .bias = w_.output_bias, .y = out}}, .latency_rows = latency_rows});
  if (config_->logit_soft_cap > 0) soft_cap(ctx, {.x = out, .cap = config_->logit_soft_cap});
  pass.probe("output_norm", -1, h);
  pass.probe("logits", -1, out);
}

// Prompt rows all of them: a row's logits are what they would be in any other slice.
void Decoder::scored_logits(const Pass& pass, const Tensor& x, const ScoredLogits& each) const {
  const int64_t rows = pass.step.shape.scored_rows, vocab = config_->vocab, pitch = logits_pitch(vocab);
  const int64_t most = std::min(rows, logits_slice(vocab));
  Workspace::Scope ws(pass.ctx.workspace);
  float* const memory = ws.take<float>(most * pitch);
  for (int64_t first = 0; first < rows; first += most) {
    const int64_t count = std::min(most, rows - first);
    const Tensor slice = make_tensor(memory, {count, pitch}).cols(0, vocab);
    logits(pass, x, pass.step.scored_rows().rows(first, count), 0, slice);
    each(first, slice);
  }
}

// In float32, however activations are kept: nothing is multiplied by them.
void Decoder::hidden_states(const Pass& pass, const Tensor& x, const Tensor& hidden) const {
  const int64_t rows = pass.step.shape.hidden_rows, d = config_->d_model;
  if (rows == 0) return;
  Workspace::Scope ws(pass.ctx.workspace);
  const Tensor wanted = make_tensor(ws.take<float>(rows * d), {rows, d});
  gather_rows(pass.ctx, {.x = x, .rows = pass.step.hidden_rows(), .y = wanted});
  add_rms_norm(pass.ctx, {.x = wanted, .add = {}, .weight = w_.output_norm, .eps = config_->eps, .h = hidden});
}

}  // namespace quire
