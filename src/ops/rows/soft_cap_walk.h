// soft_cap, written once for both vector widths. Include after ops/simd/vec_*.h.
#pragma once

#include "ops/rows/soft_cap.h"
#include "ops/simd/math.h"
#include "ops/simd/pieces.h"

namespace quire::rows {
namespace {

// cap tanh(x / cap): with y = |x| / cap, cap (1 - e^-2y) / (1 + e^-2y) under the sign of x. A NaN stays one.
template <class V>
void soft_cap_row(const CappedRows& r, int64_t t, int64_t begin, int64_t end) {
  const V cap = V::set1(r.cap), twice = V::set1(-2.0f / r.cap), one = V::set1(1.0f), zero = V::zero();
  float* const x = r.x + t * r.stride + begin;
  simd::for_vectors<V>(end - begin, [&](int64_t i, int n) {
    const V v = simd::load<V>(x + i, n);
    const V e = simd::exp(abs(v) * twice);
    const V size = cap * ((one - e) / (one + e));
    simd::store(select_greater(zero, v, zero - size, size), x + i, n);
  });
}

}  // namespace
}  // namespace quire::rows
