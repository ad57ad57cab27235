// Patches of pictures as a vision tower multiplies them: a byte for each colour of a pixel becomes a number.
#pragma once

#include "ops/op.h"

namespace quire {

// x is runs of `run` bytes, and run r has the colour r % 3: planes of colours where a run is a patch's pixels, or whole
// pixels where it is 1. In y, each run stands `frames` times, every byte as table[colour][byte], and zeros behind all.
//   x      [T, V] i8    bytes of 0 to 255; run divides V, and 3 divides V / run; rows may be further apart than V
//   table  [3, 256] f32 contiguous
//   y      [T, D] f32 or bf16 (rounded to nearest, ties to even), D >= frames * V; rows may be further apart than D
// There is one result; nothing is summed. T = 0 is legal. Bound: memory.
struct NormalisePatchesArgs {
  Tensor x, table, y;
  int64_t run = 1, frames = 1;
};
void normalise_patches(const OpContext& ctx, const NormalisePatchesArgs& a);
extern const Operator<NormalisePatchesArgs> kNormalisePatchesOp;

}  // namespace quire
