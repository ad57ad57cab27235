// reduce_partials, written once for both vector widths. Include after ops/simd/vec_*.h.
#pragma once

#include "ops/rows/reduce.h"
#include "ops/simd/pieces.h"

namespace quire::rows {
namespace {

// H: the elements of the copy, if there is one.
template <class V, class H>
void reduce_rows(const PartialRows& r, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const float* const first = r.partials + t * r.row_stride;
    float* const x = r.x + t * r.x_stride;
    H* const h = static_cast<H*>(r.h) + t * r.h_stride;
    simd::for_vectors<V>(r.width, [&](int64_t i, int n) {
      V sum = simd::load<V>(first + i, n);
      for (int64_t p = 1; p < r.count; ++p) sum = sum + simd::load<V>(first + p * r.partial_stride + i, n);
      if (r.add_to_x) sum = simd::load<V>(x + i, n) + sum;
      if (r.scale != 1.0f) sum = sum * V::set1(r.scale);
      simd::store(sum, x + i, n);
      if (r.h != nullptr) simd::store(sum, h + i, n);
    });
  }
}

template <class V>
void reduce_rows(const PartialRows& r, int64_t begin, int64_t end) {
  r.h_bf16 ? reduce_rows<V, uint16_t>(r, begin, end) : reduce_rows<V, float>(r, begin, end);
}

}  // namespace
}  // namespace quire::rows
