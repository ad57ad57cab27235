// Work on rows: token embedding, the gathering of the rows that need logits, the sum of partial results, the soft cap
// of logits, and what a gate lets through.
#pragma once

#include "ops/gemm/activation.h"
#include "ops/op.h"

namespace quire {

// x[r] = scale * table[token of row r].
//   tokens  [T] i32     each in [0, V), but for rows with a source
//   sources [T] i32     optional: of row r, the batch slot whose token of the step before it is, or -1: tokens[r]
//   sampled [batch_slots] i32  with sources: what the step before sampled; a negative token (that sequence has ended
//                       with an error, or at a limit that the host learns of later) is taken for token 0, and its row
//                       for padding
//   table   [V, D]      any decodable type
//   x       [T, D] f32
struct EmbedArgs {
  Tensor tokens, sources, sampled;
  Weight table;
  Tensor x;
};
void embed(const OpContext& ctx, const EmbedArgs& a);
extern const Operator<EmbedArgs> kEmbedOp;

// y[i] = x[rows[i]], or y[i] + x[rows[i]] in one rounding.  x [T, D], rows [R] i32, y [R, D] of the same type as x (f32
// or bf16; f32 to add). Where rows[i] is negative, y[i] stays as it is.
struct GatherRowsArgs {
  Tensor x, rows, y;
  bool add_to_y = false;
};
void gather_rows(const OpContext& ctx, const GatherRowsArgs& a);
extern const Operator<GatherRowsArgs> kGatherRowsOp;

// x[t] = scale * sum, or scale * (x[t] + sum), of partials[0][t], partials[1][t], ...: added in this order, each once,
// in float32, and x last. So the bits are the same on every device. What several devices computed of a product that is
// split along K is put together by this: linear, swiglu_mlp and moe write a partial result where they are told not to
// add.
//   partials [P, T, D] f32  1 <= P <= 8
//   x        [T, D] f32     does not alias partials
//   h        [T, D] f32 or bf16, optional: x once more, rounded to nearest even, for products that take activations;
//                   aliases neither
// T = 0 is legal. Bound: memory.
struct ReducePartialsArgs {
  static constexpr int64_t kMost = 8;
  Tensor partials, x;
  bool add_to_x = true;
  float scale = 1.0f;
  Tensor h = {};
};
void reduce_partials(const OpContext& ctx, const ReducePartialsArgs& a);
extern const Operator<ReducePartialsArgs> kReducePartialsOp;

// x = cap * tanh(x / cap) in place: logits that stay between -cap and cap.  x [T, V] f32, cap > 0. Off by at most
// 2^-21 cap; an infinity becomes cap, and a NaN stays one. Bound: memory.
struct SoftCapArgs {
  Tensor x;
  float cap = 1.0f;
};
void soft_cap(const OpContext& ctx, const SoftCapArgs& a);
extern const Operator<SoftCapArgs> kSoftCapOp;

// y = f(gate) * up, element by element, with the function that `activation` names: what swiglu_mlp has between its
// products, where `up` is no product.
//   gate, up [T, D] f32
//   y        [T, D] f32 or bf16    aliases neither
// In float32, with a relative error below 2^-13 before y's rounding. An element's bits depend on its gate and its up
// alone. T = 0 is legal. Bound: memory.
struct GatedProductArgs {
  Tensor gate, up, y;
  GateActivation activation = GateActivation::kSilu;
};
void gated_product(const OpContext& ctx, const GatedProductArgs& a);
extern const Operator<GatedProductArgs> kGatedProductOp;

}  // namespace quire
