// The norms over rows, written once for both vector widths. Include after ops/simd/vec_*.h and
// ops/simd/math.h. A row's sum of squares runs in four accumulators, added pairwise, then over V::sum's tree:
// the order depends on the row's length only.
#pragma once

#include "ops/norm/kernels.h"
#include "ops/simd/pieces.h"

namespace quire::norm {
namespace {

using simd::for_vectors;
using simd::load;
using simd::store;

// 1 / sqrt(mean of squares + eps) of a row whose vectors value(i, n) yields (zeros beyond the tail).
template <class V, class Fn>
inline float inverse_rms(int64_t D, float eps, Fn&& value) {
  V acc[4] = {V::zero(), V::zero(), V::zero(), V::zero()};
  int64_t i = 0;
  for (; i + 4 * V::kWidth <= D; i += 4 * V::kWidth) {
    for (int j = 0; j < 4; ++j) {
      const V x = value(i + j * V::kWidth, V::kWidth);
      acc[j] = fma(x, x, acc[j]);
    }
  }
  for (int j = 0; i < D; ++j, i += V::kWidth) {
    const V x = value(i, static_cast<int>(D - i < V::kWidth ? D - i : V::kWidth));
    acc[j] = fma(x, x, acc[j]);
  }
  const float sum = ((acc[0] + acc[1]) + (acc[2] + acc[3])).sum();
  return 1.0f / __builtin_sqrtf(sum / static_cast<float>(D) + eps);
}

template <class V, class A, class H>
void add_rms_norm_rows(const AddRmsNormRows& r, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    float* x = r.x + t * r.x_stride;
    const A* add = r.add == nullptr ? nullptr : static_cast<const A*>(r.add) + t * r.add_stride;
    H* h = static_cast<H*>(r.h) + t * r.h_stride;
    const float scale = inverse_rms<V>(r.D, r.eps, [&](int64_t i, int n) {
      V v = load<V>(x + i, n);
      if (add == nullptr) return v;
      v = v + load<V>(add + i, n);
      store(v, x + i, n);
      return v;
    });
    for_vectors<V>(
        r.D, [&](int64_t i, int n) { store(load<V>(x + i, n) * V::set1(scale) * load<V>(r.weight + i, n), h + i, n); });
  }
}

template <class V>
void add_rms_norm(const AddRmsNormRows& r, int64_t begin, int64_t end) {
  if (r.add_bf16)
    r.h_bf16 ? add_rms_norm_rows<V, uint16_t, uint16_t>(r, begin, end)
             : add_rms_norm_rows<V, uint16_t, float>(r, begin, end);
  else
    r.h_bf16 ? add_rms_norm_rows<V, float, uint16_t>(r, begin, end) : add_rms_norm_rows<V, float, float>(r, begin, end);
}

template <class V, class T>
void gated_rms_norm_rows(const GatedRmsNormRows& r, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    for (int64_t head = 0; head < r.Hv; ++head) {
      const T* o = static_cast<const T*>(r.o) + t * r.o_stride + head * r.Dv;
      const T* z = static_cast<const T*>(r.z) + t * r.z_stride + head * r.Dv;
      T* y = static_cast<T*>(r.y) + t * r.y_stride + head * r.Dv;
      const float scale = inverse_rms<V>(r.Dv, r.eps, [&](int64_t i, int n) { return load<V>(o + i, n); });
      for_vectors<V>(r.Dv, [&](int64_t i, int n) {
        const V normed = load<V>(o + i, n) * V::set1(scale) * load<V>(r.weight + i, n);
        store(normed * simd::silu(load<V>(z + i, n)), y + i, n);
      });
    }
  }
}

template <class V>
void gated_rms_norm(const GatedRmsNormRows& r, int64_t begin, int64_t end) {
  r.bf16 ? gated_rms_norm_rows<V, uint16_t>(r, begin, end) : gated_rms_norm_rows<V, float>(r, begin, end);
}

}  // namespace
}  // namespace quire::norm
