// The sum of the ranks' rows, written once for both vector widths. Include after ops/simd/vec_*.h.
#pragma once

#include "ops/all_reduce/kernels.h"
#include "ops/simd/pieces.h"

namespace quire::all_reduce_detail {
namespace {

// P: the elements of partials.
template <class V, class P>
void sum_rows(const RankRows& r, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    float* const x = r.x + t * r.x_stride;
    const auto partial = [&](int64_t rank) { return static_cast<const P*>(r.partials[rank]) + t * r.stride; };
    simd::for_vectors<V>(r.width, [&](int64_t i, int n) {
      V sum = simd::load<V>(partial(0) + i, n);
      for (int64_t rank = 1; rank < r.count; ++rank) sum = sum + simd::load<V>(partial(rank) + i, n);
      if (r.add_to_x) sum = simd::load<V>(x + i, n) + sum;
      simd::store(sum, x + i, n);
    });
  }
}

template <class V>
void sum_rows(const RankRows& r, int64_t begin, int64_t end) {
  r.bf16 ? sum_rows<V, uint16_t>(r, begin, end) : sum_rows<V, float>(r, begin, end);
}

}  // namespace
}  // namespace quire::all_reduce_detail
