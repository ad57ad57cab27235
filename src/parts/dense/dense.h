// A layer's dense feed-forward in a step: weights, and the pass through it.
#pragma once

#include "parts/activations.h"
#include "parts/dense/spec.h"
#include "parts/pass.h"
#include "parts/weight_loader.h"

namespace quire {

// Empty is what a model has no tensor for.
struct DenseWeights {
  Weight gate, up, down;
  Tensor gate_bias, up_bias, down_bias;

  static void visit(auto& w, auto& v) {
    v.gate_up(w.gate, w.up);
    v.matrix(w.down);
    for (auto* t : {&w.gate_bias, &w.up_bias, &w.down_bias}) v.vector(*t);
  }
};
// The loader's sizes are those of the layer.
Result<DenseWeights> load_dense(WeightLoader& w, const Architecture& row, int64_t block);

// What the operator itself takes meanwhile, of the widest layer: what gate and up put out.
void lay_out_within(const DenseSpec& spec, ActivationMemory& mem);

// From the normalised rows h.
void dense_mlp(const LayerPass& pass, const DenseSpec& spec, const DenseWeights& w, const Tensor& h,
               const PartOutput& to);

}  // namespace quire
