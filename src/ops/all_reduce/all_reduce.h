// The sum of what the ranks of a tensor-parallel model have of a result, with the residual addition and the norm behind
// it. One pass: every rank reads the results of all.
#pragma once

#include <array>

#include "ops/all_reduce/ranks.h"
#include "ops/op.h"

namespace quire {

// x <- x + (p_0 + p_1 + ... + p_{n-1}), or the sum alone;  h = weight * x / sqrt(mean(x^2) + eps), if wanted.
//   partials [T, D] f32 or bf16, all alike: what rank r has of the sum. In float32 each is added once, in the order of
//                   ranks, and x last: the bits of x are those of reduce_partials, on every device and on every rank
//   x        [T, D] f32: each rank has its own; aliases no partial
//   weight   [D] f32, and h [T, D] bf16 or f32: both or neither. The sum of squares as in add_rms_norm, of the same
//                   bits on the same device
// With a link, the caller sets partials[link->rank()] alone, in memory that the link can show the others, and all ranks
// call with equal shapes. That memory may be written again when the next call with the link is over (RankLink::meet).
// Without a link all partials are there. T = 0 is legal: then nobody meets. Bound: memory, and for few rows the time
// that it takes ranks to meet.
struct AllReduceArgs {
  std::array<Tensor, RankLink::kMost> partials;
  int32_t count = 0;  // of ranks
  RankLink* link = nullptr;
  Tensor x;
  bool add_to_x = true;
  Tensor weight = {};
  float eps = 1e-6f;
  Tensor h = {};

  int32_t own() const { return link == nullptr ? 0 : link->rank(); }
};
void all_reduce(const OpContext& ctx, const AllReduceArgs& a);
extern const Operator<AllReduceArgs> kAllReduceOp;

}  // namespace quire
