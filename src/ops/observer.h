// Seeing what weight matrices are multiplied by: for importance matrices. Operators show their inputs beside
// the computation, never inside it, so that results are the same bits with and without an observer; without
// one it costs a comparison per operator call.
#pragma once

#include "ops/mlp/mlp.h"

namespace quire {

// Set as OpContext::observer. Only called by the thread that calls the operators, outside regions of the
// pool, which may be used.
class InputObserver {
 public:
  virtual ~InputObserver() = default;

  // x [T, K] bf16 or f32: the rows that matrix number `expert` of each of the weights is multiplied by, T >=
  // 1. All weights have K columns; they may be parts of fused tensors. Rows that no segment mentions
  // (padding) are among them: run without padding.
  virtual void inputs(const OpContext& ctx, std::span<const Weight* const> weights, int64_t expert,
                      const Tensor& x) = 0;
};

// A feed-forward block, or one expert of it.
struct ObservedMlp {
  const Weight *gate = nullptr, *up = nullptr, *down = nullptr;
  int64_t expert = 0;
  Tensor gate_bias = {}, up_bias = {};  // optional
  GateActivation activation = GateActivation::kSilu;
};
// Shows h [T, D] to ctx.observer as the input of gate and up, and gated(gate h, up h), rounded to the type
// of h, as that of down. The product is computed here once more, by `linear`: kernels keep theirs in private
// forms, and this path may be slow.
void observe_mlp(const OpContext& ctx, const ObservedMlp& m, const Tensor& h);

}  // namespace quire
