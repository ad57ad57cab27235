// What the ranks of a tensor-parallel model have of the columns of a matrix, put together on each of them.
#pragma once

#include <array>

#include "ops/all_reduce/ranks.h"
#include "ops/op.h"

namespace quire {

// y[t][begins[r] + i] = parts[r][t][i]: of rank r the columns [begins[r], begins[r + 1]).
//   parts  [T, columns of rank r] f32, contiguous; a rank may have none
//   begins [count + 1], ascending from 0 to V
//   y      [T, V] f32: each rank has its own; aliases no part
// With a link, the caller sets parts[link->rank()] alone, and all ranks call with equal T and begins. When the call is
// over nobody reads that memory any more. Without a link all parts are there. T = 0 is legal: then nobody meets. Bound:
// memory. A GPU has no kernel for it.
struct AllGatherArgs {
  std::array<Tensor, RankLink::kMost> parts;
  std::array<int64_t, RankLink::kMost + 1> begins{};
  int32_t count = 0;  // of ranks
  RankLink* link = nullptr;
  Tensor y;

  int64_t columns(int32_t rank) const {
    return begins[static_cast<size_t>(rank) + 1] - begins[static_cast<size_t>(rank)];
  }
};
void all_gather(const OpContext& ctx, const AllGatherArgs& a);
extern const Operator<AllGatherArgs> kAllGatherOp;

}  // namespace quire
