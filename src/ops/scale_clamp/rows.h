// scale_clamp, written once for both vector widths. Include after ops/simd/vec_*.h.
#pragma once

#include "ops/scale_clamp/kernels.h"
#include "ops/simd/pieces.h"

namespace quire::scale_clamp_detail {
namespace {

template <class V, class X, class Y>
void scale_clamp_rows(const Rows& r, int64_t begin, int64_t end) {
  const V low = V::set1(r.low), high = V::set1(r.high);
  for (int64_t t = begin; t < end; ++t) {
    const X* const x = static_cast<const X*>(r.x) + t * r.x_stride;
    Y* const y = static_cast<Y*>(r.y) + t * r.y_stride;
    simd::for_vectors<V>(r.width, [&](int64_t i, int n) {
      V v = simd::load<V>(x + i, n);
      if (r.scale != nullptr) v = (v - simd::load<V>(r.shift + i, n)) * simd::load<V>(r.scale + i, n);
      simd::store(min(high, max(low, v)), y + i, n);  // the second operand where that is NaN
    });
  }
}

template <class V>
void scale_clamp_rows(const Rows& r, int64_t begin, int64_t end) {
  if (r.x_bf16)
    r.y_bf16 ? scale_clamp_rows<V, uint16_t, uint16_t>(r, begin, end)
             : scale_clamp_rows<V, uint16_t, float>(r, begin, end);
  else
    r.y_bf16 ? scale_clamp_rows<V, float, uint16_t>(r, begin, end) : scale_clamp_rows<V, float, float>(r, begin, end);
}

}  // namespace
}  // namespace quire::scale_clamp_detail
