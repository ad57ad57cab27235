// A dense feed-forward beside experts in one layer. The dense one reads the normalised residual stream, as everywhere;
// the experts and their router read it through norms of their own, and what each puts out is normalised.
#pragma once

#include "parts/dense/dense.h"
#include "parts/experts/experts.h"

namespace quire {

struct ParallelWeights {
  DenseWeights dense;
  Tensor dense_out_norm;
  Tensor router_norm, experts_norm;  // of the residual stream: before the router, and before the experts
  ExpertWeights experts;
  Tensor experts_out_norm;

  static void visit(auto& w, auto& v) {
    DenseWeights::visit(w.dense, v);
    for (auto* t : {&w.dense_out_norm, &w.router_norm, &w.experts_norm}) v.vector(*t);
    ExpertWeights::visit(w.experts, v);
    v.vector(w.experts_out_norm);
  }
};
Result<ParallelWeights> load_parallel(WeightLoader& w, const Architecture& row, const ExpertsSpec& experts,
                                      int64_t block);

struct ParallelActivations {
  Tensor router_h;  // [T, D]: what the router reads
  Tensor both;      // [2, T, D] f32: the normalised results
};
ParallelActivations lay_out_parallel(int64_t d_model, ActivationMemory& mem);

// The dense one from h, the experts from the residual stream x, both together to `out` [T, D], on every rank the whole.
// h is overwritten.
void parallel_mlps(const LayerPass& pass, const DenseSpec& dense, const ExpertsSpec& experts, const ParallelWeights& w,
                   const ParallelActivations& s, const Tensor& x, const Tensor& h, const Tensor& out);

}  // namespace quire
