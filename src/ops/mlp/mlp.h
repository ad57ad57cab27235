// The dense feed-forward block as one region: x += W_down gated(W_gate h, W_up h).
#pragma once

#include "ops/gemm/activation.h"
#include "ops/gemm/token_rounding.h"
#include "ops/op.h"

namespace quire {

// h      [T, D]  bf16 or f32   normalised input
// gate, up  [F, D], down [D, F] any decodable type, each with its own scale
// gate_bias, up_bias [F], down_bias [D]  f32, optional
// x      [T, D]  f32   residual stream, added to; or, if not add_to_x, what is overwritten with the result: a device
//                      that holds some rows of gate and up, and those columns of down, writes its partial result so,
//                      and one of them has the down_bias (reduce_partials)
// gated(g, u) is rounded to the activation type before W_down. Row r of x depends on row r alone.
struct MlpArgs {
  Tensor h;
  Weight gate, up, down;
  Tensor gate_bias, up_bias, down_bias;
  Tensor x;
  bool add_to_x = true;
  GateActivation activation = GateActivation::kSilu;
  int64_t latency_rows = 0;  // as for linear
  RoundedTokens rounded;     // likewise, of the input of each product

  bool for_latency() const { return latency_rows > 0; }
  MlpArgs rows(int64_t begin, int64_t count) const;
};

void swiglu_mlp(const OpContext& ctx, const MlpArgs& a);
extern const Operator<MlpArgs> kMlpOp;

}  // namespace quire
