#include "model/model.h"

#include <algorithm>
#include <cmath>

#include "model/memory.h"
#include "ops/linear/linear.h"
#include "ops/mlp/mlp.h"
#include "ops/moe/moe.h"
#include "ops/norm/norm.h"
#include "ops/rows/rows.h"

namespace quire {

Result<std::unique_ptr<Model>> Model::load(const gguf::File& file) {
  QUIRE_TRY(ModelConfig config, read_config(file));
  return config.hybrid ? load_hybrid(std::move(config), file) : load_transformer(std::move(config), file);
}

CacheShape Model::cache_shape(Device device, KvCacheType kv) const {
  return quire::cache_shape(config_, activation_type(device), kv);
}

Status Model::load_common(WeightLoader& w) {
  QUIRE_TRY(embedding_, w.matrix("token_embd", config_.vocab, config_.d_model));
  QUIRE_TRY(output_norm_, w.vector("output_norm.weight", config_.d_model));
  QUIRE_TRY(head_, w.optional_matrix("output", config_.vocab, config_.d_model));
  if (head_.empty()) head_ = embedding_;  // tied
  QUIRE_TRY(output_bias_, w.optional_vector("output.bias", config_.vocab));
  QUIRE_TRY(const Tensor divisors, w.optional_vector("rope_freqs.weight", config_.rope.n_rot / 2));
  std::span<const float> d;
  if (!divisors.empty()) d = {divisors.as<float>(), static_cast<size_t>(divisors.dim(0))};
  for (float f : d)
    if (!(f > 0.0f)) return file_error("tensor rope_freqs.weight: divisor {} is not positive", f);
  rope_table_ = make_rope_table(config_.rope, d);
  inv_freq_ = rope_table_.tensor();
  return {};
}

void Model::visit(WeightVisitor& v) {
  v.table(embedding_);
  v.vector(inv_freq_);
  visit_layers(v);
  v.vector(output_norm_);
  v.matrix(head_);
  v.vector(output_bias_);
}

std::vector<Weight> Model::matrices() const {
  struct Collect final : WeightVisitor {
    std::vector<Weight> all;
    void matrix(Weight& w) override { all.push_back(w); }
    void table(Weight&) override {}
    void vector(Tensor&) override {}
  } collect;
  const_cast<Model*>(this)->visit(collect);  // which changes nothing
  return std::move(collect.all);
}

int64_t logits_slice(int64_t vocab) {
  return std::clamp<int64_t>((int64_t{1} << 24) / vocab / kChunkTokens * kChunkTokens, kChunkTokens, 512);
}

void Model::head(const Pass& pass, const Tensor& x, const ForwardOutputs& out) const {
  hidden_states(pass, x, out.hidden);
  const StepShape& s = pass.step.shape;
  if (s.logit_rows > 0)
    logits(pass, x, pass.step.logit_rows, pass.options.latency ? s.decode_logit_rows : 0, out.logits);
  if (s.scored_rows > 0 && out.scored != nullptr) scored_logits(pass, x, *out.scored);
}

void Model::logits(const Pass& pass, const Tensor& x, const Tensor& rows, int64_t latency_rows,
                   const Tensor& out) const {
  const OpContext& ctx = pass.ctx;
  const int64_t count = rows.dim(0), d = config_.d_model;
  Workspace::Scope ws(ctx.workspace);
  const Tensor last = make_tensor(ws.take<float>(count * d), {count, d});
  const DType act = activation_type(ctx.machine.device);
  const Tensor h = make_tensor(ws.take<std::byte>(dtype_bytes(act, count * d)), act, {count, d});
  gather_rows(ctx, {.x = x, .rows = rows, .y = last});
  add_rms_norm(ctx, {.x = last, .add = {}, .weight = output_norm_, .eps = config_.eps, .h = h});
  linear(ctx,
         {.x = h, .parts = {{.w = head_, .bias = output_bias_, .y = out}}, .latency_rows = latency_rows});
  pass.probe("output_norm", -1, h);
  pass.probe("logits", -1, out);
}

// Prompt rows all of them: a row's logits are what they would be in any other slice.
void Model::scored_logits(const Pass& pass, const Tensor& x, const ScoredLogits& each) const {
  const int64_t rows = pass.step.shape.scored_rows, vocab = config_.vocab, pitch = logits_pitch(vocab);
  const int64_t most = std::min(rows, logits_slice(vocab));
  Workspace::Scope ws(pass.ctx.workspace);
  float* const memory = ws.take<float>(most * pitch);
  for (int64_t first = 0; first < rows; first += most) {
    const int64_t count = std::min(most, rows - first);
    const Tensor slice = make_tensor(memory, {count, pitch}).cols(0, vocab);
    logits(pass, x, pass.step.scored_rows.rows(first, count), 0, slice);
    each(first, slice);
  }
}

// In float32, however activations are kept: nothing is multiplied by them.
void Model::hidden_states(const Pass& pass, const Tensor& x, const Tensor& hidden) const {
  const int64_t rows = pass.step.shape.hidden_rows, d = config_.d_model;
  if (rows == 0) return;
  Workspace::Scope ws(pass.ctx.workspace);
  const Tensor wanted = make_tensor(ws.take<float>(rows * d), {rows, d});
  gather_rows(pass.ctx, {.x = x, .rows = pass.step.hidden_rows, .y = wanted});
  add_rms_norm(pass.ctx, {.x = wanted, .add = {}, .weight = output_norm_, .eps = config_.eps, .h = hidden});
}

void Model::attention(const Pass& pass, int layer, const AttentionWeights& w, const KvLayer& kv,
                      const Tensor& h, const AttentionActivations& a, const Tensor& x) const {
  linear(pass.ctx, {.x = h,
                    .parts = {{.w = w.q, .bias = w.q_bias, .y = a.q_proj},
                              {.w = w.k, .bias = w.k_bias, .y = a.k_proj},
                              {.w = w.v, .bias = w.v_bias, .y = a.v_proj}},
                    .latency_rows = pass.latency_rows()});
  attention_prepare(pass.ctx, {.q_proj = a.q_proj,
                               .k_proj = a.k_proj,
                               .v_proj = a.v_proj,
                               .q_norm = w.q_norm,
                               .k_norm = w.k_norm,
                               .eps = config_.eps,
                               .rope = rope(),
                               .segments = pass.step.segments,
                               .q = a.q,
                               .gate = a.gate,
                               .kv = kv});
  paged_attention(pass.ctx, {.q = a.q,
                             .gate = a.gate,
                             .kv = kv,
                             .segments = pass.step.segments,
                             .scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim)),
                             .out = a.mix});
  pass.probe("attn_mix", layer, a.mix);
  linear(pass.ctx, {.x = a.mix,
                    .parts = {{.w = w.out, .bias = w.out_bias, .y = x, .add_to_y = true}},
                    .latency_rows = pass.latency_rows()});
}

void Model::feed_forward(const Pass& pass, const FfnWeights& f, const Tensor& h, const Tensor& x) const {
  if (f.router.empty()) {
    swiglu_mlp(pass.ctx, {.h = h,
                          .gate = f.gate,
                          .up = f.up,
                          .down = f.down,
                          .gate_bias = f.gate_bias,
                          .up_bias = f.up_bias,
                          .down_bias = f.down_bias,
                          .x = x,
                          .latency_rows = pass.latency_rows()});
    return;
  }
  moe(pass.ctx, {.h = h,
                 .router = f.router,
                 .gate = f.gate,
                 .up = f.up,
                 .down = f.down,
                 .top_k = config_.top_k,
                 .shared_gate = f.shared_gate,
                 .shared_up = f.shared_up,
                 .shared_down = f.shared_down,
                 .shared_router = f.shared_router,
                 .x = x,
                 .chosen = {},
                 .latency_rows = pass.latency_rows()});
}

}  // namespace quire
