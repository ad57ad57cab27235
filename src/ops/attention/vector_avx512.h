// Softmax and output in AVX-512, shared by the AMX and the AVX-512 kernel (internal linkage in each).
#pragma once

#include <immintrin.h>

#include "ops/attention/walk.h"

namespace quire::attention {
namespace {

// 2^x, about 1.5 ulp, 2^0 = 1 exactly, 2^-inf = 0. Minimax polynomial of degree 5 on the fraction in [0, 1].
inline __m512 exp2_avx512(__m512 x) {
  const __m512 f = _mm512_reduce_ps(x, 0x09);  // x - floor(x)
  __m512 p = _mm512_set1_ps(0.0018671300495043397f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.009017030708491802f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.05579991266131401f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.24016444385051727f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.6931512951850891f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, x);  // p * 2^floor(x)
}

inline __m512i to_bf16_pair(__m512 low, __m512 high) {
  return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

// The walk's softmax step of one row: scores s[0, own) become probabilities, stored as bf16 in place (from
// the start of the row), with zeros up to `seen` rounded up to 32. Returns 2^(m - m').
inline float softmax_avx512(float* s, int64_t own, int64_t seen, float scale, float& max, float& total) {
  auto* p = reinterpret_cast<__m512i*>(s);
  const int64_t pieces = (seen + 31) / 32;
  if (own <= 0) {
    for (int64_t i = 0; i < pieces; ++i) _mm512_store_si512(p + i, _mm512_setzero_si512());
    return 1.0f;
  }
  const int64_t full = own / 32, rest = own % 32;
  const auto tail0 = static_cast<__mmask16>(rest >= 16 ? 0xffff : (1u << rest) - 1);
  const auto tail1 = static_cast<__mmask16>(rest <= 16 ? 0 : (1u << (rest - 16)) - 1);
  const __m512 lowest = _mm512_set1_ps(-__builtin_inff());
  __m512 m0 = lowest, m1 = lowest;
  for (int64_t i = 0; i < full; ++i) {
    m0 = _mm512_max_ps(m0, _mm512_load_ps(s + 32 * i));
    m1 = _mm512_max_ps(m1, _mm512_load_ps(s + 32 * i + 16));
  }
  if (rest > 0) {
    m0 = _mm512_max_ps(m0, _mm512_mask_load_ps(lowest, tail0, s + 32 * full));
    m1 = _mm512_max_ps(m1, _mm512_mask_load_ps(lowest, tail1, s + 32 * full + 16));
  }
  const float group_max = _mm512_reduce_max_ps(_mm512_max_ps(m0, m1)) * scale;
  const float old = max, now = old > group_max ? old : group_max;
  const __m512 c = _mm512_set1_ps(scale), m = _mm512_set1_ps(now);
  __m512 sum0 = _mm512_setzero_ps(), sum1 = _mm512_setzero_ps();
  for (int64_t i = 0; i < full; ++i) {
    const __m512 e0 = exp2_avx512(_mm512_fmsub_ps(_mm512_load_ps(s + 32 * i), c, m));
    const __m512 e1 = exp2_avx512(_mm512_fmsub_ps(_mm512_load_ps(s + 32 * i + 16), c, m));
    sum0 = _mm512_add_ps(sum0, e0);
    sum1 = _mm512_add_ps(sum1, e1);
    _mm512_store_si512(p + i, to_bf16_pair(e0, e1));
  }
  if (rest > 0) {
    const __m512 s0 = _mm512_mask_load_ps(lowest, tail0, s + 32 * full);
    const __m512 s1 = _mm512_mask_load_ps(lowest, tail1, s + 32 * full + 16);
    const __m512 e0 = _mm512_maskz_mov_ps(tail0, exp2_avx512(_mm512_fmsub_ps(s0, c, m)));
    const __m512 e1 = _mm512_maskz_mov_ps(tail1, exp2_avx512(_mm512_fmsub_ps(s1, c, m)));
    sum0 = _mm512_add_ps(sum0, e0);
    sum1 = _mm512_add_ps(sum1, e1);
    _mm512_store_si512(p + full, to_bf16_pair(e0, e1));
  }
  for (int64_t i = full + (rest > 0); i < pieces; ++i) _mm512_store_si512(p + i, _mm512_setzero_si512());
  const float keep = _mm512_cvtss_f32(exp2_avx512(_mm512_set1_ps(old - now)));
  max = now;
  total = total * keep + _mm512_reduce_add_ps(_mm512_add_ps(sum0, sum1));
  return keep;
}

inline void rescale_avx512(float* sums, int64_t d, float keep) {
  const __m512 k = _mm512_set1_ps(keep);
  for (int64_t c = 0; c < d; c += 16) _mm512_store_ps(sums + c, _mm512_mul_ps(_mm512_load_ps(sums + c), k));
}

// out = sums * inv_total * sigmoid(gate), rounded once to bf16.
inline void finish_avx512(const float* sums, float inv_total, const bf16* gate, bf16* out, int64_t d) {
  for (int64_t c = 0; c < d; c += 16) {
    const auto lanes = static_cast<__mmask16>(d - c >= 16 ? 0xffff : (1u << (d - c)) - 1);
    __m512 x = _mm512_load_ps(sums + c);
    // A tile's padding may or may not have flushed a denormal or a negative zero: do it always.
    const __mmask16 normal = _mm512_cmp_ps_mask(_mm512_abs_ps(x), _mm512_set1_ps(__FLT_MIN__), _CMP_NLT_UQ);
    x = _mm512_maskz_mul_ps(normal, x, _mm512_set1_ps(inv_total));
    if (gate != nullptr) {
      const __m512i bits = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, gate + c));
      const __m512 g = _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
      const __m512 e = exp2_avx512(_mm512_mul_ps(g, _mm512_set1_ps(-kLog2e)));
      x = _mm512_div_ps(x, _mm512_add_ps(e, _mm512_set1_ps(1.0f)));
    }
    _mm256_mask_storeu_epi16(out + c, lanes, (__m256i)_mm512_cvtneps_pbh(x));
  }
}

}  // namespace
}  // namespace quire::attention
