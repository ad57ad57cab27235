// Vec256: eight floats and the operations that kernels written once for several widths need. The twin of
// Vec512 (vec_avx512.h): same names, same meaning.
#pragma once

#include "core/m256.h"

#include <cstdint>
#include <cstring>

namespace quire::simd {
namespace {

struct Vec256 {
  static constexpr int kWidth = 8;
  __m256 v;

  static Vec256 zero() { return {_mm256_setzero_ps()}; }
  // first, first + 1, first + 2, ...
  static Vec256 count_from(float first) {
    return {_mm256_add_ps(_mm256_set1_ps(first), _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7))};
  }
  static Vec256 set1(float x) { return {_mm256_set1_ps(x)}; }
  static Vec256 load(const float* p) { return {_mm256_loadu_ps(p)}; }
  static void prefetch(const float* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0); }
  // bf16 is passed as its bits.
  static Vec256 load(const uint16_t* p) { return widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
  // The first n elements, 0 < n <= 8; the rest are zero. Nothing beyond them is touched.
  static Vec256 load(const float* p, int n) { return {_mm256_maskload_ps(p, mask(n))}; }
  static Vec256 load(const uint16_t* p, int n) {
    alignas(16) uint16_t part[8] = {};
    std::memcpy(part, p, static_cast<size_t>(n) * sizeof *p);
    return load(part);
  }
  void store(float* p) const { _mm256_storeu_ps(p, v); }
  void store(uint16_t* p) const { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), to_bf16()); }
  void store(float* p, int n) const { _mm256_maskstore_ps(p, mask(n), v); }
  void store(uint16_t* p, int n) const {
    alignas(16) uint16_t part[8];
    store(part);
    std::memcpy(p, part, static_cast<size_t>(n) * sizeof *p);
  }

  friend Vec256 operator+(Vec256 a, Vec256 b) { return {_mm256_add_ps(a.v, b.v)}; }
  friend Vec256 operator-(Vec256 a, Vec256 b) { return {_mm256_sub_ps(a.v, b.v)}; }
  friend Vec256 operator*(Vec256 a, Vec256 b) { return {_mm256_mul_ps(a.v, b.v)}; }
  friend Vec256 operator/(Vec256 a, Vec256 b) { return {_mm256_div_ps(a.v, b.v)}; }

  // The sum over a fixed tree: halves, quarters, and so on.
  float sum() const {
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
  }

  static __m256i mask(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static Vec256 widen(__m128i bits) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16))};
  }
  // Round to nearest even; NaN stays NaN.
  __m128i to_bf16() const {
    const __m256i u = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i r = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    r = _mm256_blendv_epi8(r, _mm256_or_si256(u, _mm256_set1_epi32(0x400000)), nan);
    r = _mm256_srli_epi32(r, 16);
    r = _mm256_permute4x64_epi64(_mm256_packus_epi32(r, r), _MM_SHUFFLE(3, 1, 2, 0));
    return _mm256_castsi256_si128(r);
  }
};

// a * b + c, one rounding.
inline Vec256 fma(Vec256 a, Vec256 b, Vec256 c) {
  return {_mm256_fmadd_ps(a.v, b.v, c.v)};
}
// c - a * b, one rounding.
inline Vec256 fnma(Vec256 a, Vec256 b, Vec256 c) {
  return {_mm256_fnmadd_ps(a.v, b.v, c.v)};
}
inline Vec256 abs(Vec256 x) {
  return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), x.v)};
}
// The second operand where either is NaN.
inline Vec256 max(Vec256 a, Vec256 b) {
  return {_mm256_max_ps(a.v, b.v)};
}
inline Vec256 min(Vec256 a, Vec256 b) {
  return {_mm256_min_ps(a.v, b.v)};
}
inline Vec256 round(Vec256 x) {
  return {_mm256_round_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// x 2^n for whole n in [-252, 254]; overflows to infinity, underflows through the subnormals to zero.
inline Vec256 scale_by_power(Vec256 x, Vec256 n) {
  // In two steps, each a normal number: 2^-150 itself is not one.
  const __m256i i = _mm256_cvtps_epi32(n.v), half = _mm256_srai_epi32(i, 1), rest = _mm256_sub_epi32(i, half);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256 a = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
  const __m256 b = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
  return {_mm256_mul_ps(_mm256_mul_ps(x.v, a), b)};
}
// a where x > y, else b.
inline Vec256 select_greater(Vec256 x, Vec256 y, Vec256 a, Vec256 b) {
  return {_mm256_blendv_ps(b.v, a.v, _mm256_cmp_ps(x.v, y.v, _CMP_GT_OQ))};
}

// The sums of four vectors, each over the same tree, to out[0..3].
inline void sum4(Vec256 a, Vec256 b, Vec256 c, Vec256 d, float* out) {
  const __m256 ab = _mm256_add_ps(_mm256_unpacklo_ps(a.v, b.v), _mm256_unpackhi_ps(a.v, b.v));
  const __m256 cd = _mm256_add_ps(_mm256_unpacklo_ps(c.v, d.v), _mm256_unpackhi_ps(c.v, d.v));
  const __m256 s = _mm256_add_ps(_mm256_shuffle_ps(ab, cd, _MM_SHUFFLE(1, 0, 1, 0)),
                                 _mm256_shuffle_ps(ab, cd, _MM_SHUFFLE(3, 2, 3, 2)));
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1)));
}

// Rows of 4 floats, 8 of them, to 4 vectors of a column each.
inline void load_columns4(const float* p, Vec256* out) {
  const __m256i at = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
  for (int i = 0; i < 4; ++i) out[i].v = _mm256_i32gather_ps(p + i, at, 4);
}

// Rows to columns, 8 x 8, in place. Moves bits only.
inline void transpose(Vec256* r) {
  __m256 a[8], b[8];
  for (int i = 0; i < 8; i += 2) {
    a[i] = _mm256_unpacklo_ps(r[i].v, r[i + 1].v);
    a[i + 1] = _mm256_unpackhi_ps(r[i].v, r[i + 1].v);
  }
  for (int i = 0; i < 8; i += 4) {
    b[i] = _mm256_shuffle_ps(a[i], a[i + 2], _MM_SHUFFLE(1, 0, 1, 0));
    b[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], _MM_SHUFFLE(3, 2, 3, 2));
    b[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], _MM_SHUFFLE(1, 0, 1, 0));
    b[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], _MM_SHUFFLE(3, 2, 3, 2));
  }
  for (int c = 0; c < 4; ++c) {
    r[c].v = _mm256_permute2f128_ps(b[c], b[4 + c], 0x20);
    r[4 + c].v = _mm256_permute2f128_ps(b[c], b[4 + c], 0x31);
  }
}

}  // namespace
}  // namespace quire::simd
