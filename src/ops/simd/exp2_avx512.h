// The exponential of the AVX-512 kernels that have many to take: attention and SwiGLU.
#pragma once

#include <immintrin.h>

namespace quire::simd {
namespace {

// 2^x, about 1.5 ulp, 2^0 = 1 exactly, 2^-inf = 0. Minimax polynomial of degree 5 on the fraction in [0, 1].
inline __m512 exp2(__m512 x) {
  const __m512 f = _mm512_reduce_ps(x, 0x09);  // x - floor(x)
  __m512 p = _mm512_set1_ps(0.0018671300495043397f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.009017030708491802f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.05579991266131401f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.24016444385051727f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.6931512951850891f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, x);  // p * 2^floor(x)
}

}  // namespace
}  // namespace quire::simd
