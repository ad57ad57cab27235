// Dense projections: y = scale * W x (+ bias) (+ y), several matrices over one input in one region.
#pragma once

#include "ops/op.h"

namespace quire {

// x     [T, K]   bf16 (CPU kernels) or f32 (reference); the row stride may exceed K
// parts: for each
//   w    [N, K]  any decodable type; K as in x
//   bias [N]     f32, optional (empty tensor)
//   y    [T, N]  bf16 or f32; must not alias x
//   add_to_y     y += result instead of y = result (the residual epilogue; y is then f32)
// The sum over K is in float32 (kernels) or float64 (reference). CPU kernels decode weights to bf16 (float32
// for F32 and F16 weights), so a weight is rounded once to 8 bits of mantissa unless its format is exact in
// bf16 (BF16, MXFP4, NVFP4); with AMX, Q8_0, Q4_0, Q5_0 and Q6_K pass through the 11 bits of a half before
// that. The integer kernel rounds the tokens instead (`generated`). The weight's scale multiplies the
// finished sum, before bias. Row r of y depends on row r of x alone, bit for bit. T = 0 is legal. Bound: for
// small T the bytes of W (read once); for large T 2·T·N·K operations.
struct LinearPart {
  Weight w;
  Tensor bias;
  Tensor y;
  bool add_to_y = false;
};
struct LinearArgs {
  Tensor x;
  std::span<const LinearPart> parts;
  // Rows are generated tokens of an engine that runs few sequences: the integer kernel may take them, which
  // rounds the tokens instead of the weights, or the vector kernel, with BF16 weights (docs/numerics.md). The
  // bits of a row differ with this, and with nothing else.
  bool generated = false;
};

void linear(const OpContext& ctx, const LinearArgs& a);
std::span<const Kernel<LinearArgs>> linear_kernels();

}  // namespace quire
