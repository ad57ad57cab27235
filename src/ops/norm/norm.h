// Row normalisations: RMSNorm with the residual addition in front of it, and the delta net's gated norm.
#pragma once

#include "ops/op.h"

namespace quire {

// x <- x + add;  h = weight * x / sqrt(mean(x^2) + eps).
//   x [T, D] f32 residual stream (written only when add is given);  add [T, D] f32 or bf16, optional
//   weight [D] f32;  h [T, D] bf16 or f32. The sum of squares is in float32 over a fixed tree (reference:
//   float64).
struct AddRmsNormArgs {
  Tensor x, add, weight;
  float eps = 1e-6f;
  Tensor h;
};
void add_rms_norm(const OpContext& ctx, const AddRmsNormArgs& a);
extern const Operator<AddRmsNormArgs> kAddRmsNormOp;

// y = weight * o / sqrt(mean(o^2) + eps) * SiLU(z), per head of Dv.
//   o [T, Hv, Dv], z [T, Hv * Dv], y [T, Hv * Dv] activation type (y may alias o);  weight [Dv] f32, shared
//   by heads
struct GatedRmsNormArgs {
  Tensor o, z, weight;
  float eps = 1e-6f;
  Tensor y;
};
void gated_rms_norm(const OpContext& ctx, const GatedRmsNormArgs& a);
extern const Operator<GatedRmsNormArgs> kGatedRmsNormOp;

}  // namespace quire
