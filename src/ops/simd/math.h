// Elementary functions over Vec256 and Vec512, good to about 2 units in the last place. Tails of rows go
// through the same code (masked loads), so an element's value never depends on where it stands.
//   Include after vec_avx2.h or vec_avx512.h.
#pragma once

namespace quire::simd {
namespace {

// e^x. 0 below -104, infinity above 88.7; NaN stays NaN.
template <class V>
inline V exp(V x) {
  x = min(V::set1(89.0f), max(V::set1(-104.0f), x));
  const V n = round(x * V::set1(1.44269504f));
  // ln 2 in two parts: n times the first is exact.
  V r = fnma(n, V::set1(0.693359375f), x);
  r = fnma(n, V::set1(-2.12194440e-4f), r);
  // Taylor, |r| <= 0.347: the first term left out is below 6e-9.
  V p = V::set1(1.0f / 5040.0f);
  p = fma(p, r, V::set1(1.0f / 720.0f));
  p = fma(p, r, V::set1(1.0f / 120.0f));
  p = fma(p, r, V::set1(1.0f / 24.0f));
  p = fma(p, r, V::set1(1.0f / 6.0f));
  p = fma(p, r, V::set1(0.5f));
  p = fma(p, r, V::set1(1.0f));
  p = fma(p, r, V::set1(1.0f));
  return scale_by_power(p, n);
}

template <class V>
inline V sigmoid(V x) {
  return V::set1(1.0f) / (V::set1(1.0f) + exp(V::zero() - x));
}

// x sigmoid(y).
template <class V>
inline V times_sigmoid(V x, V y) {
  return x / (V::set1(1.0f) + exp(V::zero() - y));
}
template <class V>
inline V silu(V x) {
  return times_sigmoid(x, x);
}

// ln(1 + u) for u in [0, 1].
template <class V>
inline V log1p_unit(V u) {
  const V one = V::set1(1.0f), y = one + u;
  // y = 2^e m with m in [0.7, 1.42]; ln m = 2 atanh(s).
  const V root2 = V::set1(1.41421356f);
  const V m = select_greater(y, root2, y * V::set1(0.5f), y);
  const V e_ln2 = select_greater(y, root2, V::set1(0.693147181f), V::zero());
  const V s = (m - one) / (m + one), s2 = s * s;
  V p = V::set1(2.0f / 11.0f);
  p = fma(p, s2, V::set1(2.0f / 9.0f));
  p = fma(p, s2, V::set1(2.0f / 7.0f));
  p = fma(p, s2, V::set1(2.0f / 5.0f));
  p = fma(p, s2, V::set1(2.0f / 3.0f));
  p = fma(p, s2, V::set1(2.0f));
  // What 1 + u lost by rounding comes back to first order; for tiny u it is all there is.
  const V lost = (u - (y - one)) / y;
  return e_ln2 + fma(p, s, lost);
}

// ln(1 + e^x) without overflow.
template <class V>
inline V softplus(V x) {
  return max(V::zero(), x) + log1p_unit(exp(V::zero() - abs(x)));
}

}  // namespace
}  // namespace quire::simd
