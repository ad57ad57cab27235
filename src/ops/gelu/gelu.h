// GELU of rows ("Gaussian Error Linear Units", arXiv:1606.08415): x Phi(x), Phi the normal distribution's integral.
//
// It is an operator of its own and no epilogue of linear: that would be a branch in every core's stores, and what a
// product puts out is read once more from memory at a cost that does not show beside the product.
#pragma once

#include "ops/op.h"

namespace quire {

enum class GeluForm : uint8_t {
  kErf,   // x (1 + erf(x / sqrt(2))) / 2
  kTanh,  // x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2
};

// y = gelu(x), element by element.
//   x, y [T, D] f32 or bf16; y may be x (the same view), and aliases it in no other way
// In float32, with a relative error below 2^-13 before y's rounding, and below 1e-30 where the result is smaller than
// that allows. An element's bits depend on itself alone. NaN stays NaN. T = 0 is legal. Bound: memory.
struct GeluArgs {
  Tensor x, y;
  GeluForm form = GeluForm::kTanh;
};
void gelu(const OpContext& ctx, const GeluArgs& a);
extern const Operator<GeluArgs> kGeluOp;

}  // namespace quire
