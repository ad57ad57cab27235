// Of m256_neon.h: vectors of float32 and float64.
#pragma once

#include "core/m256_neon.h"

namespace {

QUIRE_M256 __m256 _mm256_set1_ps(float x) {
  return {vdupq_n_f32(x), vdupq_n_f32(x)};
}
QUIRE_M256 __m256 _mm256_setzero_ps() {
  return _mm256_set1_ps(0.0f);
}
QUIRE_M256 __m256 _mm256_setr_ps(float a, float b, float c, float d, float e, float f, float g, float h) {
  return {float32x4_t{a, b, c, d}, float32x4_t{e, f, g, h}};
}
QUIRE_M256 __m256 _mm256_loadu_ps(const float* p) {
  return {vld1q_f32(p), vld1q_f32(p + 4)};
}
QUIRE_M256 __m256 _mm256_load_ps(const float* p) {
  return _mm256_loadu_ps(p);
}
QUIRE_M256 void _mm256_storeu_ps(float* p, __m256 v) {
  vst1q_f32(p, v.lo);
  vst1q_f32(p + 4, v.hi);
}
QUIRE_M256 void _mm256_store_ps(float* p, __m256 v) {
  _mm256_storeu_ps(p, v);
}
QUIRE_M256 __m256 _mm256_broadcast_ss(const float* p) {
  return {vld1q_dup_f32(p), vld1q_dup_f32(p)};
}
QUIRE_M256 __m256 _mm256_broadcastss_ps(__m128 v) {
  return {vdupq_laneq_f32(v, 0), vdupq_laneq_f32(v, 0)};
}
QUIRE_HALVES2(__m256, _mm256_add_ps, vaddq_f32(a, b))
QUIRE_HALVES2(__m256, _mm256_sub_ps, vsubq_f32(a, b))
QUIRE_HALVES2(__m256, _mm256_mul_ps, vmulq_f32(a, b))
QUIRE_HALVES2(__m256, _mm256_div_ps, vdivq_f32(a, b))
QUIRE_HALVES3(__m256, _mm256_fmadd_ps, vfmaq_f32(c, a, b))
QUIRE_HALVES3(__m256, _mm256_fmsub_ps, vfmaq_f32(vnegq_f32(c), a, b))
QUIRE_HALVES3(__m256, _mm256_fnmadd_ps, vfmsq_f32(c, a, b))
// The second operand where either is NaN, and where both are zeros.
QUIRE_HALVES2(__m256, _mm256_max_ps, vbslq_f32(vcgtq_f32(a, b), a, b))
QUIRE_HALVES2(__m256, _mm256_min_ps, vbslq_f32(vcltq_f32(a, b), a, b))

QUIRE_M256 __m256 bits_of(uint32x4_t lo, uint32x4_t hi) {
  return {vreinterpretq_f32_u32(lo), vreinterpretq_f32_u32(hi)};
}
QUIRE_M256 __m256 _mm256_castsi256_ps(__m256i v) {
  return {vreinterpretq_f32_s32(v.lo), vreinterpretq_f32_s32(v.hi)};
}
QUIRE_M256 __m256i _mm256_castps_si256(__m256 v) {
  return {vreinterpretq_s32_f32(v.lo), vreinterpretq_s32_f32(v.hi)};
}
QUIRE_M256 __m128 _mm256_castps256_ps128(__m256 v) {
  return v.lo;
}
QUIRE_M256 __m128 _mm256_extractf128_ps(__m256 v, int i) {
  return i == 0 ? v.lo : v.hi;
}
QUIRE_M256 float _mm256_cvtss_f32(__m256 v) {
  return vgetq_lane_f32(v.lo, 0);
}

constexpr int _CMP_LT_OQ = 17, _CMP_LE_OQ = 18, _CMP_UNORD_Q = 3, _CMP_NLT_UQ = 21, _CMP_GE_OQ = 29, _CMP_GT_OQ = 30;
QUIRE_M256 uint32x4_t compared(float32x4_t a, float32x4_t b, int how) {
  switch (how) {
    case _CMP_LT_OQ:
      return vcltq_f32(a, b);
    case _CMP_LE_OQ:
      return vcleq_f32(a, b);
    case _CMP_GE_OQ:
      return vcgeq_f32(a, b);
    case _CMP_GT_OQ:
      return vcgtq_f32(a, b);
    case _CMP_NLT_UQ:
      return vmvnq_u32(vcltq_f32(a, b));
    case _CMP_UNORD_Q:
      return vmvnq_u32(vandq_u32(vceqq_f32(a, a), vceqq_f32(b, b)));
  }
  __builtin_unreachable();
}
QUIRE_M256 __m256 _mm256_cmp_ps(__m256 a, __m256 b, int how) {
  return bits_of(compared(a.lo, b.lo, how), compared(a.hi, b.hi, how));
}

constexpr int _MM_FROUND_TO_NEAREST_INT = 0, _MM_FROUND_NO_EXC = 8;  // the one way of rounding that there is
QUIRE_M256 __m256 _mm256_round_ps(__m256 v, int) {
  return {vrndnq_f32(v.lo), vrndnq_f32(v.hi)};
}
QUIRE_M256 __m256i _mm256_cvtps_epi32(__m256 v) {
  return {vcvtnq_s32_f32(v.lo), vcvtnq_s32_f32(v.hi)};
}
QUIRE_M256 __m256i _mm256_cvttps_epi32(__m256 v) {
  return {vcvtq_s32_f32(v.lo), vcvtq_s32_f32(v.hi)};
}
QUIRE_M256 __m256 _mm256_cvtepi32_ps(__m256i v) {
  return {vcvtq_f32_s32(v.lo), vcvtq_f32_s32(v.hi)};
}
QUIRE_M256 __m256 _mm256_cvtph_ps(__m128i halves) {
  const float16x8_t h = vreinterpretq_f16_s32(halves);
  return {vcvt_f32_f16(vget_low_f16(h)), vcvt_high_f32_f16(h)};
}
QUIRE_M256 int _mm256_movemask_ps(__m256 v) {
  const int32x4_t at{0, 1, 2, 3};
  const auto of = [&](float32x4_t half) {
    return static_cast<int>(vaddvq_u32(vshlq_u32(vshrq_n_u32(vreinterpretq_u32_f32(half), 31), at)));
  };
  return of(v.lo) | of(v.hi) << 4;
}

#define QUIRE_ON_BITS(name, expression)                                               \
  QUIRE_M256 __m256 name(__m256 v, __m256 w) {                                        \
    const auto of = [](float32x4_t x, float32x4_t y) __attribute__((always_inline)) { \
      const uint32x4_t a = vreinterpretq_u32_f32(x), b = vreinterpretq_u32_f32(y);    \
      return expression;                                                              \
    };                                                                                \
    return bits_of(of(v.lo, w.lo), of(v.hi, w.hi));                                   \
  }
QUIRE_ON_BITS(_mm256_and_ps, vandq_u32(a, b))
QUIRE_ON_BITS(_mm256_or_ps, vorrq_u32(a, b))
QUIRE_ON_BITS(_mm256_andnot_ps, vbicq_u32(b, a))
#undef QUIRE_ON_BITS
// b where the sign of `mask` is set.
QUIRE_M256 float32x4_t blended(float32x4_t a, float32x4_t b, float32x4_t mask) {
  return vbslq_f32(vreinterpretq_u32_s32(vshrq_n_s32(vreinterpretq_s32_f32(mask), 31)), b, a);
}
QUIRE_M256 __m256 _mm256_blendv_ps(__m256 a, __m256 b, __m256 mask) {
  return {blended(a.lo, b.lo, mask.lo), blended(a.hi, b.hi, mask.hi)};
}
QUIRE_HALVES2(__m256, _mm256_unpacklo_ps, vzip1q_f32(a, b))
QUIRE_HALVES2(__m256, _mm256_unpackhi_ps, vzip2q_f32(a, b))
constexpr int _MM_SHUFFLE(int d, int c, int b, int a) {
  return d << 6 | c << 4 | b << 2 | a;
}
QUIRE_M256 __m128 _mm_shuffle_ps(__m128 a, __m128 b, int of) {
  if (of == _MM_SHUFFLE(1, 0, 1, 0)) return vcombine_f32(vget_low_f32(a), vget_low_f32(b));
  if (of == _MM_SHUFFLE(3, 2, 3, 2)) return vcombine_f32(vget_high_f32(a), vget_high_f32(b));
  return float32x4_t{a[of & 3], a[of >> 2 & 3], b[of >> 4 & 3], b[of >> 6 & 3]};
}
QUIRE_M256 __m256 _mm256_shuffle_ps(__m256 a, __m256 b, int of) {
  return {_mm_shuffle_ps(a.lo, b.lo, of), _mm_shuffle_ps(a.hi, b.hi, of)};
}
// 0x20: the low halves of both; 0x31: the high ones.
QUIRE_M256 __m256 _mm256_permute2f128_ps(__m256 a, __m256 b, int of) {
  const auto half = [&](int i) { return i == 0 ? a.lo : i == 1 ? a.hi : i == 2 ? b.lo : b.hi; };
  return {half(of & 3), half(of >> 4 & 3)};
}
QUIRE_M256 __m256 _mm256_maskload_ps(const float* p, __m256i mask) {
  float of[8] = {};
  int32_t wanted[8];
  vst1q_s32(wanted, mask.lo);
  vst1q_s32(wanted + 4, mask.hi);
  for (int i = 0; i < 8; ++i)
    if (wanted[i] < 0) of[i] = p[i];
  return _mm256_loadu_ps(of);
}
QUIRE_M256 void _mm256_maskstore_ps(float* p, __m256i mask, __m256 v) {
  float of[8];
  int32_t wanted[8];
  _mm256_storeu_ps(of, v);
  vst1q_s32(wanted, mask.lo);
  vst1q_s32(wanted + 4, mask.hi);
  for (int i = 0; i < 8; ++i)
    if (wanted[i] < 0) p[i] = of[i];
}

QUIRE_M256 __m128 _mm_set1_ps(float x) {
  return vdupq_n_f32(x);
}
QUIRE_M256 __m128 _mm_load_ps(const float* p) {
  return vld1q_f32(p);
}
QUIRE_M256 void _mm_store_ps(float* p, __m128 v) {
  vst1q_f32(p, v);
}
QUIRE_M256 void _mm_storeu_ps(float* p, __m128 v) {
  vst1q_f32(p, v);
}
QUIRE_M256 __m128 _mm_add_ps(__m128 a, __m128 b) {
  return vaddq_f32(a, b);
}
QUIRE_M256 __m128 _mm_mul_ps(__m128 a, __m128 b) {
  return vmulq_f32(a, b);
}
QUIRE_M256 __m128 _mm_max_ps(__m128 a, __m128 b) {
  return vbslq_f32(vcgtq_f32(a, b), a, b);
}
// Of these two only element 0 is used.
QUIRE_M256 __m128 _mm_add_ss(__m128 a, __m128 b) {
  return vaddq_f32(a, b);
}
QUIRE_M256 __m128 _mm_max_ss(__m128 a, __m128 b) {
  return _mm_max_ps(a, b);
}
// The upper half of b below that of a.
QUIRE_M256 __m128 _mm_movehl_ps(__m128 a, __m128 b) {
  return vcombine_f32(vget_high_f32(b), vget_high_f32(a));
}
QUIRE_M256 __m128 _mm_movehdup_ps(__m128 a) {
  return vtrn2q_f32(a, a);
}
QUIRE_M256 float _mm_cvtss_f32(__m128 a) {
  return vgetq_lane_f32(a, 0);
}
QUIRE_M256 __m128 _mm_cvtph_ps(__m128i halves) {
  return vcvt_f32_f16(vget_low_f16(vreinterpretq_f16_s32(halves)));
}

// ---- float64

QUIRE_M256 __m256d _mm256_set1_pd(double x) {
  return {vdupq_n_f64(x), vdupq_n_f64(x)};
}
QUIRE_M256 __m256d _mm256_setzero_pd() {
  return _mm256_set1_pd(0.0);
}
QUIRE_HALVES2(__m256d, _mm256_mul_pd, vmulq_f64(a, b))
QUIRE_HALVES3(__m256d, _mm256_fmadd_pd, vfmaq_f64(c, a, b))
QUIRE_HALVES3(__m256d, _mm256_fnmadd_pd, vfmsq_f64(c, a, b))
QUIRE_HALVES2(__m256d, _mm256_xor_pd,
              vreinterpretq_f64_u64(veorq_u64(vreinterpretq_u64_f64(a), vreinterpretq_u64_f64(b))))
QUIRE_HALVES3(__m256d, _mm256_blendv_pd,
              vbslq_f64(vreinterpretq_u64_s64(vshrq_n_s64(vreinterpretq_s64_f64(c), 63)), b, a))
QUIRE_M256 __m256d _mm256_round_pd(__m256d v, int) {
  return {vrndnq_f64(v.lo), vrndnq_f64(v.hi)};
}
QUIRE_M256 __m256d _mm256_castsi256_pd(__m256i v) {
  return {vreinterpretq_f64_s32(v.lo), vreinterpretq_f64_s32(v.hi)};
}
QUIRE_M256 __m256d _mm256_cvtps_pd(__m128 v) {
  return {vcvt_f64_f32(vget_low_f32(v)), vcvt_high_f64_f32(v)};
}
QUIRE_M256 __m128 _mm256_cvtpd_ps(__m256d v) {
  return vcvt_high_f32_f64(vcvt_f32_f64(v.lo), v.hi);
}
// Within 32 bits, or the nearest number that is.
QUIRE_M256 __m128i _mm256_cvtpd_epi32(__m256d v) {
  return vcombine_s32(vqmovn_s64(vcvtnq_s64_f64(v.lo)), vqmovn_s64(vcvtnq_s64_f64(v.hi)));
}

}  // namespace
