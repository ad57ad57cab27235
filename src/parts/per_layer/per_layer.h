// Embeddings of each layer in a step: weights, intermediates, what is made of them before the layers, and what a layer
// takes from its own behind the feed-forward.
#pragma once

#include "ops/rows/rows.h"
#include "parts/activations.h"
#include "parts/pass.h"
#include "parts/per_layer/spec.h"
#include "parts/weight_loader.h"

namespace quire {

// Of the model: those of all layers, side by side in a row. Empty where there are none.
struct PerLayerInput {
  Weight table;       // [V, L P]
  Weight projection;  // [L P, D], of the token's embedding
  Tensor norm;        // [P], of each layer's part of that

  static void visit(auto& w, auto& v) {
    if (!w.table.empty()) v.table(w.table);
    v.matrix(w.projection);
    v.vector(w.norm);
  }
};
Result<PerLayerInput> load_per_layer_input(WeightLoader& w, const PerLayerSpec& spec);

// What a layer takes from its own embedding e of a token: norm(out (f(gate x) * e)) of the residual stream x, with the
// feed-forward's activation f. [P, D], [D, P] and [D].
struct PerLayerWeights {
  Weight gate, out;
  Tensor norm;

  static void visit(auto& w, auto& v) {
    v.matrix(w.gate);
    v.matrix(w.out);
    v.vector(w.norm);
  }
};
Result<PerLayerWeights> load_per_layer(WeightLoader& w, int64_t block);

struct PerLayerActivations {
  Tensor all;    // [T, L P] f32: the embeddings of all layers
  Tensor gate;   // [T, P] f32, of one layer
  Tensor gated;  // [T, P]
};
// `all`: where that is laid out already, or empty.
PerLayerActivations lay_out(const PerLayerSpec& spec, ActivationMemory& mem, const Tensor& all = {});
// What per_layer_input takes while it runs.
Tensor lay_out_within(const PerLayerSpec& spec, ActivationMemory& mem);

// What the layers have of the step's tokens by themselves, to s.all: the tokens' rows in the table, and what their
// embeddings x [T, D] are projected to, normalised layer by layer; the sum of both times the root of 1/2. `tokens`:
// without table and x. h and `scratch` are [T, D], scratch in float32.
void per_layer_input(const LayerPass& pass, const PerLayerSpec& spec, const PerLayerInput& w, EmbedArgs tokens,
                     const PerLayerActivations& s, const Tensor& x, const Tensor& h, const Tensor& scratch);
// What pass.layer adds to the residual stream h, before its norm, to `out` [T, D] f32.
void per_layer_output(const LayerPass& pass, const PerLayerSpec& spec, const PerLayerWeights& w,
                      const PerLayerActivations& s, const Tensor& h, const Tensor& out);

}  // namespace quire
