// LayerNorm of rows: mean and variance, a weight and a bias, with the residual addition in front of it.
#pragma once

#include "ops/op.h"

namespace quire {

// x <- x + add;  h = weight * (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) + bias.
//   x [T, D] f32, written only when add is given;  add [T, D] f32 or bf16, optional
//   weight, bias [D] f32;  h [T, D] bf16 or f32
// Mean and variance are in float32, each over a fixed tree that depends on D alone (reference: float64); the variance
// is that of the differences to the mean, so a large mean costs no digits of it. Rows may be further apart than D.
// T = 0 is legal. Bound: memory.
struct LayerNormArgs {
  Tensor x, add, weight, bias;
  float eps = 1e-6f;
  Tensor h;
};
void layer_norm(const OpContext& ctx, const LayerNormArgs& a);
extern const Operator<LayerNormArgs> kLayerNormOp;

}  // namespace quire
