// layer_norm, written once for both vector widths. Include after ops/simd/vec_*.h. A row is read three times, the last
// two from the first-level cache.
#pragma once

#include "ops/layer_norm/kernels.h"
#include "ops/simd/pieces.h"

namespace quire::layer_norm_detail {
namespace {

using simd::for_vectors;
using simd::load;
using simd::store;

// The sum of a row whose vectors value(i, n) yields (zeros beyond the tail): four accumulators, added pairwise, then
// V::sum's tree.
template <class V, class Fn>
inline float sum_of_row(int64_t width, Fn&& value) {
  V acc[4] = {V::zero(), V::zero(), V::zero(), V::zero()};
  int turn = 0;
  for_vectors<V>(width, [&](int64_t i, int n) {
    acc[turn] = acc[turn] + value(i, n);
    turn = (turn + 1) % 4;
  });
  return ((acc[0] + acc[1]) + (acc[2] + acc[3])).sum();
}

// The difference to the mean in the lanes of the row, and zeros beyond.
template <class V>
inline V difference(const float* x, int n, float mean) {
  const V d = load<V>(x, n) - V::set1(mean);
  if (n == V::kWidth) return d;
  return select_greater(V::set1(static_cast<float>(n)), V::count_from(0.0f), d, V::zero());
}

template <class V, class A, class H>
void norm_rows(const Rows& r, int64_t begin, int64_t end) {
  const auto width = static_cast<float>(r.width);
  for (int64_t t = begin; t < end; ++t) {
    float* const x = r.x + t * r.x_stride;
    const A* const add = r.add == nullptr ? nullptr : static_cast<const A*>(r.add) + t * r.add_stride;
    H* const h = static_cast<H*>(r.h) + t * r.h_stride;
    const float mean = sum_of_row<V>(r.width,
                                     [&](int64_t i, int n) {
                                       V v = load<V>(x + i, n);
                                       if (add == nullptr) return v;
                                       v = v + load<V>(add + i, n);
                                       store(v, x + i, n);
                                       return v;
                                     }) /
                       width;
    const float variance = sum_of_row<V>(r.width,
                                         [&](int64_t i, int n) {
                                           const V d = difference<V>(x + i, n, mean);
                                           return d * d;
                                         }) /
                           width;
    const V scale = V::set1(1.0f / __builtin_sqrtf(variance + r.eps));
    for_vectors<V>(r.width, [&](int64_t i, int n) {
      const V normed = difference<V>(x + i, n, mean) * scale;
      store(fma(normed, load<V>(r.weight + i, n), load<V>(r.bias + i, n)), h + i, n);
    });
  }
}

template <class V>
void norm_rows(const Rows& r, int64_t begin, int64_t end) {
  if (r.add_bf16)
    r.h_bf16 ? norm_rows<V, uint16_t, uint16_t>(r, begin, end) : norm_rows<V, uint16_t, float>(r, begin, end);
  else
    r.h_bf16 ? norm_rows<V, float, uint16_t>(r, begin, end) : norm_rows<V, float, float>(r, begin, end);
}

}  // namespace
}  // namespace quire::layer_norm_detail
