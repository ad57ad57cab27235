// Vec512: sixteen floats and the operations that kernels written once for several widths need. The twin of
// Vec256 (vec_avx2.h): same names, same meaning. Included only by *_avx512.cpp and *_amx.cpp files;
// everything has internal linkage, so that code compiled for a newer CPU can never be picked by the linker
// for an older one.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace quire::simd {
namespace {

struct Vec512 {
  static constexpr int kWidth = 16;
  __m512 v;

  static Vec512 zero() { return {_mm512_setzero_ps()}; }
  // first, first + 1, first + 2, ...
  static Vec512 count_from(float first) {
    return {_mm512_add_ps(_mm512_set1_ps(first), _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15))};
  }
  static Vec512 set1(float x) { return {_mm512_set1_ps(x)}; }
  static Vec512 load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static void prefetch(const float* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0); }
  // bf16 is passed as its bits.
  static Vec512 load(const uint16_t* p) { return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
  // The first n elements, 0 < n <= 16; the rest are zero. Nothing beyond them is touched.
  static Vec512 load(const float* p, int n) { return {_mm512_maskz_loadu_ps(mask(n), p)}; }
  static Vec512 load(const uint16_t* p, int n) { return widen(_mm256_maskz_loadu_epi16(mask(n), p)); }
  void store(float* p) const { _mm512_storeu_ps(p, v); }
  void store(uint16_t* p) const { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_bf16()); }
  void store(float* p, int n) const { _mm512_mask_storeu_ps(p, mask(n), v); }
  void store(uint16_t* p, int n) const { _mm256_mask_storeu_epi16(p, mask(n), to_bf16()); }

  friend Vec512 operator+(Vec512 a, Vec512 b) { return {_mm512_add_ps(a.v, b.v)}; }
  friend Vec512 operator-(Vec512 a, Vec512 b) { return {_mm512_sub_ps(a.v, b.v)}; }
  friend Vec512 operator*(Vec512 a, Vec512 b) { return {_mm512_mul_ps(a.v, b.v)}; }
  friend Vec512 operator/(Vec512 a, Vec512 b) { return {_mm512_div_ps(a.v, b.v)}; }

  // The sum over a fixed tree: halves, quarters, and so on.
  float sum() const {
    const __m256 h = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
  }

  static __mmask16 mask(int n) { return static_cast<__mmask16>((1u << n) - 1u); }
  static Vec512 widen(__m256i bits) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
  }
  // Round to nearest even; NaN stays NaN.
  __m256i to_bf16() const {
    const __m512i u = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i r = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    r = _mm512_mask_or_epi32(r, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), u, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(r, 16));
  }
};

// a * b + c, one rounding.
inline Vec512 fma(Vec512 a, Vec512 b, Vec512 c) {
  return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
// c - a * b, one rounding.
inline Vec512 fnma(Vec512 a, Vec512 b, Vec512 c) {
  return {_mm512_fnmadd_ps(a.v, b.v, c.v)};
}
inline Vec512 abs(Vec512 x) {
  return {_mm512_abs_ps(x.v)};
}
// The second operand where either is NaN.
inline Vec512 max(Vec512 a, Vec512 b) {
  return {_mm512_max_ps(a.v, b.v)};
}
inline Vec512 min(Vec512 a, Vec512 b) {
  return {_mm512_min_ps(a.v, b.v)};
}
inline Vec512 round(Vec512 x) {
  return {_mm512_roundscale_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// x 2^n for whole n; overflows to infinity, underflows through the subnormals to zero.
inline Vec512 scale_by_power(Vec512 x, Vec512 n) {
  return {_mm512_scalef_ps(x.v, n.v)};
}
// a where x > y, else b.
inline Vec512 select_greater(Vec512 x, Vec512 y, Vec512 a, Vec512 b) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x.v, y.v, _CMP_GT_OQ), b.v, a.v)};
}

// The sums of four vectors, each over the same tree, to out[0..3].
inline void sum4(Vec512 a, Vec512 b, Vec512 c, Vec512 d, float* out) {
  const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a.v, b.v), _mm512_unpackhi_ps(a.v, b.v));
  const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c.v, d.v), _mm512_unpackhi_ps(c.v, d.v));
  const __m512 s = _mm512_add_ps(_mm512_shuffle_ps(ab, cd, _MM_SHUFFLE(1, 0, 1, 0)),
                                 _mm512_shuffle_ps(ab, cd, _MM_SHUFFLE(3, 2, 3, 2)));
  const __m256 h = _mm256_add_ps(_mm512_castps512_ps256(s), _mm512_extractf32x8_ps(s, 1));
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1)));
}

// Rows of 4 floats, 16 of them, to 4 vectors of a column each.
inline void load_columns4(const float* p, Vec512* out) {
  const __m512 a = _mm512_loadu_ps(p), b = _mm512_loadu_ps(p + 16), c = _mm512_loadu_ps(p + 32),
               d = _mm512_loadu_ps(p + 48);
  const __m512i step = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
  for (int i = 0; i < 4; ++i) {
    const __m512i at = _mm512_add_epi32(step, _mm512_set1_epi32(i));
    out[i].v = _mm512_mask_blend_ps(0xff00, _mm512_permutex2var_ps(a, at, b), _mm512_permutex2var_ps(c, at, d));
  }
}

// Rows to columns, 16 x 16, in place. Moves bits only, so a row may hold pairs of bf16 as well.
inline void transpose(Vec512* r) {
  __m512 a[16], b[16];
  for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_ps(r[i].v, r[i + 1].v);
    a[i + 1] = _mm512_unpackhi_ps(r[i].v, r[i + 1].v);
  }
  for (int i = 0; i < 16; i += 4) {
    b[i] = _mm512_shuffle_ps(a[i], a[i + 2], _MM_SHUFFLE(1, 0, 1, 0));
    b[i + 1] = _mm512_shuffle_ps(a[i], a[i + 2], _MM_SHUFFLE(3, 2, 3, 2));
    b[i + 2] = _mm512_shuffle_ps(a[i + 1], a[i + 3], _MM_SHUFFLE(1, 0, 1, 0));
    b[i + 3] = _mm512_shuffle_ps(a[i + 1], a[i + 3], _MM_SHUFFLE(3, 2, 3, 2));
  }
  // b[4 m + c]: lane l holds column 4 l + c of rows 4 m .. 4 m + 3. Now gather the lanes.
  for (int c = 0; c < 4; ++c) {
    const __m512 lo01 = _mm512_shuffle_f32x4(b[c], b[4 + c], _MM_SHUFFLE(1, 0, 1, 0));
    const __m512 lo23 = _mm512_shuffle_f32x4(b[8 + c], b[12 + c], _MM_SHUFFLE(1, 0, 1, 0));
    const __m512 hi01 = _mm512_shuffle_f32x4(b[c], b[4 + c], _MM_SHUFFLE(3, 2, 3, 2));
    const __m512 hi23 = _mm512_shuffle_f32x4(b[8 + c], b[12 + c], _MM_SHUFFLE(3, 2, 3, 2));
    r[c].v = _mm512_shuffle_f32x4(lo01, lo23, _MM_SHUFFLE(2, 0, 2, 0));
    r[4 + c].v = _mm512_shuffle_f32x4(lo01, lo23, _MM_SHUFFLE(3, 1, 3, 1));
    r[8 + c].v = _mm512_shuffle_f32x4(hi01, hi23, _MM_SHUFFLE(2, 0, 2, 0));
    r[12 + c].v = _mm512_shuffle_f32x4(hi01, hi23, _MM_SHUFFLE(3, 1, 3, 1));
  }
}

}  // namespace
}  // namespace quire::simd
