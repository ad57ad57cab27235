// gelu, written once for both vector widths. Include after ops/simd/vec_*.h and ops/simd/math.h.
#pragma once

#include "ops/gelu/erfc.h"
#include "ops/gelu/kernels.h"
#include "ops/gemm/gated_simd.h"
#include "ops/simd/pieces.h"

namespace quire::gelu_detail {
namespace {

// erfc(z) for z >= 0 (ops/gelu/erfc.h).
template <class V>
inline V erfc_positive(V z) {
  const V t = V::set1(1.0f) / fma(V::set1(0.5f), z, V::set1(1.0f));
  V p = V::set1(kErfcPolynomial[0]);
  for (int i = 1; i < 10; ++i) p = fma(p, t, V::set1(kErfcPolynomial[i]));
  return t * simd::exp(fnma(z, z, p));
}

template <class V>
inline V gelu_erf(V x) {
  // Half of what lies beyond |x|; Phi(x) is that, or what is left of 1.
  const V tail = V::set1(0.5f) * erfc_positive(abs(x) * V::set1(0.70710678118654752f));
  return x * select_greater(x, V::zero(), V::set1(1.0f) - tail, tail);
}

template <class V, class X, class Y>
void gelu_rows(const Rows& r, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const X* const x = static_cast<const X*>(r.x) + t * r.x_stride;
    Y* const y = static_cast<Y*>(r.y) + t * r.y_stride;
    simd::for_vectors<V>(r.width, [&](int64_t i, int n) {
      const V v = simd::load<V>(x + i, n);
      const V out = r.erf ? gelu_erf(v) : gemm::gated_vectors(GateActivation::kGeluTanh, v, V::set1(1.0f));
      simd::store(out, y + i, n);
    });
  }
}

template <class V>
void gelu_rows(const Rows& r, int64_t begin, int64_t end) {
  if (r.x_bf16)
    r.y_bf16 ? gelu_rows<V, uint16_t, uint16_t>(r, begin, end) : gelu_rows<V, uint16_t, float>(r, begin, end);
  else
    r.y_bf16 ? gelu_rows<V, float, uint16_t>(r, begin, end) : gelu_rows<V, float, float>(r, begin, end);
}

}  // namespace
}  // namespace quire::gelu_detail
