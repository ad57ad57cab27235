#include "parts/per_layer/per_layer.h"

#include <cmath>

#include "ops/linear/linear.h"
#include "ops/norm/norm.h"

namespace quire {

// Embeddings of each layer come scaled as those of the model do: by the root of their size. What the model's are
// projected to is divided by the root of theirs.
Result<PerLayerInput> load_per_layer_input(WeightLoader& w, const PerLayerSpec& spec) {
  PerLayerInput p;
  QUIRE_TRY(p.table, w.matrix(TensorRole::kPerLayerEmbedding));
  QUIRE_TRY(p.projection, w.matrix(TensorRole::kPerLayerProjection));
  QUIRE_TRY(p.norm, w.vector(TensorRole::kPerLayerNorm));
  const float width = std::sqrt(static_cast<float>(spec.width)), d = std::sqrt(static_cast<float>(w.sizes().d_model));
  p.table.scale = w.factor(p.table.scale_of() * width);
  p.projection.scale = w.factor(p.projection.scale_of() / d);
  return p;
}

Result<PerLayerWeights> load_per_layer(WeightLoader& w, int64_t block) {
  PerLayerWeights p;
  QUIRE_TRY(p.gate, w.matrix(TensorRole::kPerLayerGate, block));
  QUIRE_TRY(p.out, w.matrix(TensorRole::kPerLayerOut, block));
  QUIRE_TRY(p.norm, w.vector(TensorRole::kPostPerLayerNorm, block));
  return p;
}

PerLayerActivations lay_out(const PerLayerSpec& spec, ActivationMemory& mem, const Tensor& all) {
  PerLayerActivations s;
  s.all = all.empty() ? mem.f32(spec.all()) : all;
  s.gate = mem.f32(spec.width);
  s.gated = mem.act(spec.width);
  return s;
}

Tensor lay_out_within(const PerLayerSpec& spec, ActivationMemory& mem) {
  return mem.f32(spec.all());
}

void per_layer_input(const LayerPass& pass, const PerLayerSpec& spec, const PerLayerInput& w, EmbedArgs tokens,
                     const PerLayerActivations& s, const Tensor& x, const Tensor& h, const Tensor& scratch) {
  const int64_t rows = x.dim(0), d = x.dim(1);
  Workspace::Scope scope(pass.ctx.workspace);
  ActivationMemory mem(scope, h.dtype, rows);
  const Tensor other = lay_out_within(spec, mem);
  const auto by_layer = [&](const Tensor& t) { return t.reshaped({rows * spec.layers, spec.width}); };
  // The embeddings as products take them: nothing is added up here.
  reduce_partials(pass.ctx, {.partials = x.reshaped({1, rows, d}), .x = scratch, .add_to_x = false, .h = h});
  linear(
      pass.ctx,
      {.x = h, .parts = {{.w = w.projection, .y = other}}, .latency_rows = pass.latency_rows, .rounded = pass.rounded});
  add_rms_norm(pass.ctx, {.x = by_layer(other), .add = {}, .weight = w.norm, .eps = pass.eps, .h = by_layer(s.all)});
  tokens.table = w.table;
  tokens.x = other;
  embed(pass.ctx, tokens);
  reduce_partials(pass.ctx, {.partials = other.reshaped({1, rows, spec.all()}), .x = s.all, .scale = std::sqrt(0.5f)});
  pass.show("per_layer_input", s.all);
}

void per_layer_output(const LayerPass& pass, const PerLayerSpec& spec, const PerLayerWeights& w,
                      const PerLayerActivations& s, const Tensor& h, const Tensor& out) {
  linear(pass.ctx,
         {.x = h, .parts = {{.w = w.gate, .y = s.gate}}, .latency_rows = pass.latency_rows, .rounded = pass.rounded});
  gated_product(pass.ctx, {.gate = s.gate,
                           .up = s.all.cols(pass.layer * spec.width, spec.width),
                           .y = s.gated,
                           .activation = spec.activation});
  pass.show("per_layer_gated", s.gated);
  linear(pass.ctx,
         {.x = s.gated, .parts = {{.w = w.out, .y = out}}, .latency_rows = pass.latency_rows, .rounded = pass.rounded});
}

}  // namespace quire
