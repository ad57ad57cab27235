// Small vector pieces shared by the AMX and AVX-512 cores. Included only by files compiled for AVX-512;
// everything has internal linkage, so that no other file can end up with this code.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "ops/gemm/core.h"

namespace quire::gemm {
namespace {

// Rows of 16 32-bit numbers become columns.
inline void transpose16(__m512i v[16]) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    v[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    v[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    v[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    v[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(v[i], v[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(v[i], v[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    v[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    v[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    v[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    v[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

// e^x to about 2 ulp; 0 and infinity at the ends, NaN stays NaN.
inline __m512 exp16(__m512 x) {
  const __m512 n =
      _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(0x1.715476p0f)), _MM_FROUND_TO_NEAREST_INT);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0x1.62e4p-1f), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0x1.7f7d1cp-20f), r);
  __m512 p = _mm512_set1_ps(1.0f / 720);
  for (const float c : {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f})
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(c));
  // Beyond +-128 scalef has long overflowed or vanished; the clamp keeps infinity - infinity out of r.
  const __m512 e = _mm512_scalef_ps(p, n);
  const __mmask16 high = _mm512_cmp_ps_mask(x, _mm512_set1_ps(89.0f), _CMP_GT_OQ);
  const __mmask16 low = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-104.0f), _CMP_LT_OQ);
  return _mm512_mask_mov_ps(_mm512_maskz_mov_ps(static_cast<__mmask16>(~low), e), high,
                            _mm512_set1_ps(__builtin_inff()));
}

inline __m512 silu16(__m512 g) {
  const __m512 one = _mm512_set1_ps(1.0f);
  return _mm512_div_ps(g, _mm512_add_ps(one, exp16(_mm512_sub_ps(_mm512_setzero_ps(), g))));
}

// 16 outputs n, n + 1, ... of token t, those in `mask`.
inline void store16(const Store& out, int64_t t, int64_t n, __mmask16 mask, __m512 sum, float scale) {
  const int64_t at = (out.row_of == nullptr ? t : out.row_of[t]) * out.stride + n - out.first;
  __m512 v = _mm512_mul_ps(sum, _mm512_set1_ps(scale));
  if (out.bias != nullptr) v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(mask, out.bias + n));
  if (out.dtype == DType::kBF16) {
    _mm256_mask_storeu_epi16(static_cast<uint16_t*>(out.y) + at, mask, (__m256i)_mm512_cvtneps_pbh(v));
    return;
  }
  float* y = static_cast<float*>(out.y) + at;
  if (out.add) v = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, y), v);
  _mm512_mask_storeu_ps(y, mask, v);
}

inline __mmask16 first_lanes(int64_t count) {
  return static_cast<__mmask16>(count >= 16 ? 0xffff : (1u << (count > 0 ? count : 0)) - 1u);
}

}  // namespace
}  // namespace quire::gemm
