// The mixture-of-experts block as one region: router, top-k, grouped gate/up GEMM with SwiGLU, grouped down
// GEMM with the weighted combine, and the shared expert, as in Qwen3-MoE and Qwen3.5-MoE.
#pragma once

#include "ops/gemm/activation.h"
#include "ops/gemm/token_rounding.h"
#include "ops/op.h"

namespace quire {

// How experts are chosen and weighted. Scores s are a softmax of the router's logits over all experts, or their
// sigmoids. Chosen are the top k of s + selection_bias, ties to the lower index, among the experts of the best groups:
// E / groups neighbours are a group, which counts as the sum of its two largest s + selection_bias.
struct ExpertChoice {
  enum class Scores : uint8_t { kSoftmax, kSigmoid } scores = Scores::kSoftmax;
  bool normalised = true;  // weights s of the chosen are divided by their sum (at least 2^-14, of sigmoids 1e-20)
  float scale = 1.0f;      // of the weights
  int32_t groups = 1, used_groups = 1;
  Tensor selection_bias;  // [E] f32, optional

  // A softmax over all, as most models have it.
  bool plain() const {
    return scores == Scores::kSoftmax && normalised && scale == 1.0f && used_groups == groups && selection_bias.empty();
  }
};

// h        [T, D]  bf16 or f32   normalised input
// router_h [T, D]  optional, of h's type: what the router reads instead of h. Then no shared expert has a router
// router   [E, D]  any type (F32 in files); logits, with router_bias [E] f32 if there is one, are in float32.
//                  ExpertChoice says what follows from them; by default w_e = p_e / max(sum over the top k, 2^-14) of
//                  p = softmax(logits) over all E
// gate, up [E x [Fe, D]], down [E x [D, Fe]]; or some of the E from `first_expert` on, and their biases: a device of
//                  several that have some of the experts each. Tokens that chose others get nothing of them here; the
//                  partial results of all devices add up to the whole
// gate_bias, up_bias [E, Fe], down_bias [E, D] f32, optional: all or none; the shared expert has none
// shared_gate, shared_up [Fs, D], shared_down [D, Fs]
//                  optional (empty): out += sigmoid(shared_router . h) * mlp(h)
// shared_router [D] f32, optional: without it the shared expert has weight 1
// x        [T, D]  f32   residual stream, added to: the top-k experts in the order of their rank, then the shared one.
//                        If not add_to_x, they are added to 0 and overwrite x: a device that holds some rows of every
//                        expert's gate and up, and those columns of down, writes its partial result so, from the whole
//                        router (reduce_partials)
// gated(g, u) is rounded to the activation type before the down projection. Row r of x depends on row r alone, whatever
// other tokens chose. Empty experts cost nothing; one expert may get every token.
// Traffic: as many experts as tokens would choose on average if each chose any k of them.
struct MoeArgs {
  Tensor h;
  Tensor router_h = {};
  Weight router, gate, up, down;
  Tensor router_bias = {}, gate_bias = {}, up_bias = {}, down_bias = {};
  GateActivation activation = GateActivation::kSilu;
  int top_k = 0;
  int64_t first_expert = 0;
  ExpertChoice choice;
  Weight shared_gate, shared_up, shared_down;
  Tensor shared_router;
  Tensor x;
  bool add_to_x = true;
  Tensor chosen;             // [T, top_k] i32, optional: receives the chosen experts in rank order (statistics, tests)
  int64_t latency_rows = 0;  // as for linear
  RoundedTokens rounded;     // likewise, of the input of each product but the router's

  const Tensor& router_input() const { return router_h.empty() ? h : router_h; }
  bool has_all_experts() const { return gate.experts == router.rows; }
  // The number of a chosen expert among those that are here; -1: it is on another device.
  int64_t here(int64_t chosen_expert) const {
    const int64_t e = chosen_expert - first_expert;
    return e >= 0 && e < gate.experts ? e : -1;
  }
  bool for_latency() const { return latency_rows > 0; }
  MoeArgs rows(int64_t begin, int64_t count) const;
};

void moe(const OpContext& ctx, const MoeArgs& a);
extern const Operator<MoeArgs> kMoeOp;

}  // namespace quire
