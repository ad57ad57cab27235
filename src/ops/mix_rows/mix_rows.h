// Weighted sums of a table's rows: learned positions of a vision tower, interpolated to an image's grid (four rows
// each), and the mean of neighbouring patches that a tower pools (as many rows as a token has patches).
#pragma once

#include "ops/op.h"

namespace quire {

// x[t] = sum over k of weights[t][k] * table[rows[t][k]], or x[t] plus that sum.
//   rows    [T, K] i32   each in [0, N);  1 <= K <= kMost
//   weights [T, K] f32
//   table   [N, D] f32   does not alias x
//   x       [T, D] f32   rows may be further apart than D
// In float32: products are added in ascending k, each in one rounding, the first one rounded by itself; x last. So a
// single row with the weight 1 is copied, or added, exactly. An element's bits depend on nothing else. T = 0 is legal.
// Bound: memory.
struct MixRowsArgs {
  static constexpr int64_t kMost = 256;
  Tensor rows, weights, table, x;
  bool add_to_x = false;
};
void mix_rows(const OpContext& ctx, const MixRowsArgs& a);
extern const Operator<MixRowsArgs> kMixRowsOp;

}  // namespace quire
