// Small vector pieces shared by the AMX and AVX-512 cores. Included only by files compiled for AVX-512;
// everything has internal linkage, so that no other file can end up with this code.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <type_traits>

#include "ops/gemm/core.h"
#include "ops/simd/exp2_avx512.h"

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

// g / (1 + e^-x). The reciprocal by its estimate of 14 bits and one step of Newton: a division of 16 floats
// takes as long as all the rest. The argument's rounding makes up to |x| 2^-24 of relative error: nothing
// beside the rounding to bf16 that follows. From -87 on the result is g 2^-126 in place of something smaller.
inline __m512 times_sigmoid16(__m512 g, __m512 x) {
  // In this order a NaN stays one.
  const __m512 t = _mm512_min_ps(_mm512_set1_ps(126.0f), _mm512_mul_ps(x, _mm512_set1_ps(-0x1.715476p0f)));
  const __m512 d = _mm512_add_ps(_mm512_set1_ps(1.0f), simd::exp2(t)), r = _mm512_rcp14_ps(d);
  return _mm512_mul_ps(g, _mm512_mul_ps(r, _mm512_fnmadd_ps(d, r, _mm512_set1_ps(2.0f))));
}

// 16 values of gate and up in one.
inline __m512 gated16(GateActivation activation, __m512 g, __m512 u) {
  __m512 exponent = g;
  if (activation == GateActivation::kGeluTanh) {
    const __m512 cube = _mm512_mul_ps(_mm512_mul_ps(_mm512_set1_ps(static_cast<float>(glu::kGeluCube)), g), g);
    exponent = _mm512_mul_ps(_mm512_set1_ps(static_cast<float>(2 * glu::kGeluRoot)), _mm512_fmadd_ps(cube, g, g));
  } else if (activation == GateActivation::kSwigluOai) {
    const __m512 limit = _mm512_set1_ps(static_cast<float>(glu::kOaiLimit));
    g = _mm512_min_ps(limit, g);  // in this order a NaN stays one
    u = _mm512_max_ps(_mm512_sub_ps(_mm512_setzero_ps(), limit), _mm512_min_ps(limit, u));
    u = _mm512_add_ps(u, _mm512_set1_ps(1.0f));
    exponent = _mm512_mul_ps(_mm512_set1_ps(static_cast<float>(glu::kOaiAlpha)), g);
  }
  return _mm512_mul_ps(times_sigmoid16(g, exponent), u);
}

inline __mmask16 first_lanes(int64_t count) {
  return static_cast<__mmask16>(count >= 16 ? 0xffff : (1u << (count > 0 ? count : 0)) - 1u);
}

// Outputs n, n + 1, ... n + 15, those in `mask`, of `tokens` tokens from t on: sums[i] holds those of token t
// + i.
template <bool kBf16, bool kAdd>
void store_rows(const Epilogue& out, int64_t t, int64_t tokens, int64_t n, __mmask16 mask, const __m512i* sums,
                float scale) {
  using Elem = std::conditional_t<kBf16, uint16_t, float>;
  Elem* const y = static_cast<Elem*>(out.y) + n - out.first;
  const int64_t stride = out.stride;
  const int32_t* const row_of = out.row_of == nullptr ? nullptr : out.row_of + t;
  const bool biased = out.bias != nullptr;
  const __m512 bias = biased ? _mm512_maskz_loadu_ps(mask, out.bias + n) : _mm512_setzero_ps();
  const __m512 scales = _mm512_set1_ps(scale);
  for (int64_t i = 0; i < tokens; ++i) {
    Elem* const to = y + (row_of == nullptr ? t + i : row_of[i]) * stride;
    __m512 v = _mm512_mul_ps(_mm512_castsi512_ps(sums[i]), scales);
    if (biased) v = _mm512_add_ps(v, bias);
    if constexpr (kBf16) {
      _mm256_mask_storeu_epi16(to, mask, (__m256i)_mm512_cvtneps_pbh(v));
    } else {
      if (kAdd) v = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, to), v);
      _mm512_mask_storeu_ps(to, mask, v);
    }
  }
}
inline void store_rows(const Epilogue& out, int64_t t, int64_t tokens, int64_t n, __mmask16 mask, const __m512i* sums,
                       float scale) {
  if (out.dtype == DType::kBF16) return store_rows<true, false>(out, t, tokens, n, mask, sums, scale);
  if (out.add) return store_rows<false, true>(out, t, tokens, n, mask, sums, scale);
  store_rows<false, false>(out, t, tokens, n, mask, sums, scale);
}

}  // namespace
}  // namespace quire::gemm
