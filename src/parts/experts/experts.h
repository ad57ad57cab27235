// A layer's experts in a step: weights, and the pass through them.
#pragma once

#include "parts/activations.h"
#include "parts/experts/spec.h"
#include "parts/pass.h"
#include "parts/weight_loader.h"

namespace quire {

// Empty is what a model has no tensor for.
struct ExpertWeights {
  Weight router, gate, up, down;
  Tensor router_bias, gate_bias, up_bias, down_bias;
  Tensor selection_bias;  // ExpertChoice::selection_bias
  Weight shared_gate, shared_up, shared_down;
  Tensor shared_router;

  static void visit(auto& w, auto& v) {
    v.matrix(w.router);
    for (auto* t : {&w.router_bias, &w.selection_bias, &w.gate_bias, &w.up_bias, &w.down_bias}) v.vector(*t);
    v.experts(w.gate, w.up, w.down, w.shared_gate, w.shared_up, w.shared_down);
    v.vector(w.shared_router);
  }
};
Result<ExpertWeights> load_experts(WeightLoader& w, const Architecture& row, const ExpertsSpec& spec, int64_t block);

// What the operator itself takes meanwhile: what gate and up of a token's experts put out.
void lay_out_within(const ExpertsSpec& spec, ActivationMemory& mem);

// From the normalised rows h. `router_h`: what the router reads, if not h.
void expert_mlps(const LayerPass& pass, const ExpertsSpec& spec, const ExpertWeights& w, const Tensor& h,
                 const Tensor& router_h, const PartOutput& to);

}  // namespace quire
