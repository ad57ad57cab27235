// mix_rows, written once for both vector widths. Include after ops/simd/vec_*.h.
#pragma once

#include "ops/mix_rows/kernels.h"
#include "ops/simd/pieces.h"

namespace quire::mix_rows_detail {
namespace {

template <class V>
void mix(const Rows& r, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const int32_t* const rows = r.rows + t * r.rows_stride;
    const float* const weights = r.weights + t * r.weights_stride;
    float* const x = r.x + t * r.x_stride;
    simd::for_vectors<V>(r.width, [&](int64_t i, int n) {
      const auto from = [&](int64_t k) { return simd::load<V>(r.table + rows[k] * r.table_stride + i, n); };
      V sum = V::set1(weights[0]) * from(0);
      for (int64_t k = 1; k < r.count; ++k) sum = fma(V::set1(weights[k]), from(k), sum);
      if (r.add_to_x) sum = simd::load<V>(x + i, n) + sum;
      simd::store(sum, x + i, n);
    });
  }
}

}  // namespace
}  // namespace quire::mix_rows_detail
