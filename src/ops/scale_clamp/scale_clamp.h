// Numbers held between two bounds, and columns of rows that are shifted and scaled before that: what Gemma 4's vision
// tower has around its products, and behind its pooling.
#pragma once

#include <limits>

#include "ops/op.h"

namespace quire {

// y = (x - shift) * scale, and of that what lies outside of [low, high] becomes the bound, element by element.
//   x, y         [T, D] f32 or bf16; y may be x (the same view), and aliases it in no other way
//   shift, scale [D] f32, optional: both or neither. Without them y is x, between the bounds
//   low <= high, either may be infinite
// In float32, each operation rounded once, before y's rounding. An element's bits depend on itself and its column's
// numbers alone. NaN stays NaN. T = 0 is legal. Bound: memory.
struct ScaleClampArgs {
  Tensor x, y;
  Tensor shift = {}, scale = {};
  float low = -std::numeric_limits<float>::infinity(), high = std::numeric_limits<float>::infinity();
};
void scale_clamp(const OpContext& ctx, const ScaleClampArgs& a);
extern const Operator<ScaleClampArgs> kScaleClampOp;

}  // namespace quire
