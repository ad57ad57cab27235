// Inside attention/: the kernels behind the two tables, and the checks and walks that they share.
#pragma once

#include <algorithm>

#include "ops/attention/attention.h"

namespace quire::attention {

// The sizes of a call, taken from its (already checked) tensors.
struct Heads {
  int64_t rows = 0;     // T
  int64_t q_heads = 0;  // H
  int64_t kv_heads = 0;
  int64_t d = 0;
  int64_t group() const { return q_heads / kv_heads; }  // query heads that share a KV head
};
template <class Args>
Heads heads_of(const Args& a) {
  return {a.q.dim(0), a.q.dim(1), a.kv.k.dim(1), a.q.dim(2)};
}

// Largest head that the kernels' scratch is made for; the references take any even d.
inline constexpr int64_t kMaxHeadDim = 512;

void prepare_reference(const OpContext& ctx, const AttentionPrepareArgs& a);
void attend_reference(const OpContext& ctx, const PagedAttentionArgs& a);

}  // namespace quire::attention
