// Of m256_neon.h: vectors of integers, and the rest. The last to be included: ends its macros.
#pragma once

#include "core/m256_neon.h"

namespace {

QUIRE_M256 __m256i _mm256_setzero_si256() {
  return {vdupq_n_s32(0), vdupq_n_s32(0)};
}
QUIRE_M256 __m256i _mm256_set1_epi8(char x) {
  const int32x4_t v = of_s8(vdupq_n_s8(static_cast<int8_t>(x)));
  return {v, v};
}
QUIRE_M256 __m256i _mm256_set1_epi16(int16_t x) {
  const int32x4_t v = of_s16(vdupq_n_s16(x));
  return {v, v};
}
QUIRE_M256 __m256i _mm256_set1_epi32(int32_t x) {
  return {vdupq_n_s32(x), vdupq_n_s32(x)};
}
QUIRE_M256 __m256i _mm256_set1_epi64x(int64_t x) {
  const int32x4_t v = of_s64(vdupq_n_s64(x));
  return {v, v};
}
QUIRE_M256 __m256i _mm256_setr_epi32(int a, int b, int c, int d, int e, int f, int g, int h) {
  return {int32x4_t{a, b, c, d}, int32x4_t{e, f, g, h}};
}
QUIRE_M256 __m256i _mm256_setr_epi64x(int64_t a, int64_t b, int64_t c, int64_t d) {
  return {of_s64(int64x2_t{a, b}), of_s64(int64x2_t{c, d})};
}
QUIRE_M256 __m256i _mm256_loadu_si256(const __m256i* p) {
  const auto* const bytes = reinterpret_cast<const uint8_t*>(p);
  return {of_u8(vld1q_u8(bytes)), of_u8(vld1q_u8(bytes + 16))};
}
QUIRE_M256 __m256i _mm256_load_si256(const __m256i* p) {
  return _mm256_loadu_si256(p);
}
QUIRE_M256 void _mm256_storeu_si256(__m256i* p, __m256i v) {
  auto* const bytes = reinterpret_cast<uint8_t*>(p);
  vst1q_u8(bytes, u8_of(v.lo));
  vst1q_u8(bytes + 16, u8_of(v.hi));
}
QUIRE_M256 void _mm256_store_si256(__m256i* p, __m256i v) {
  _mm256_storeu_si256(p, v);
}
QUIRE_M256 void _mm256_stream_si256(__m256i* p, __m256i v) {
  _mm256_storeu_si256(p, v);
}
QUIRE_M256 void _mm_sfence() {}
QUIRE_M256 __m256i _mm256_maskload_epi32(const int* p, __m256i mask) {
  int32_t of[8] = {}, wanted[8];
  vst1q_s32(wanted, mask.lo);
  vst1q_s32(wanted + 4, mask.hi);
  for (int i = 0; i < 8; ++i)
    if (wanted[i] < 0) std::memcpy(of + i, p + i, 4);
  return {vld1q_s32(of), vld1q_s32(of + 4)};
}
QUIRE_M256 __m256 _mm256_i32gather_ps(const float* p, __m256i at, int) {
  const auto of = [&](int32x4_t i) { return float32x4_t{p[i[0]], p[i[1]], p[i[2]], p[i[3]]}; };
  return {of(at.lo), of(at.hi)};
}

QUIRE_HALVES2(__m256i, _mm256_and_si256, vandq_s32(a, b))
QUIRE_HALVES2(__m256i, _mm256_or_si256, vorrq_s32(a, b))
QUIRE_HALVES2(__m256i, _mm256_xor_si256, veorq_s32(a, b))
QUIRE_HALVES2(__m256i, _mm256_andnot_si256, vbicq_s32(b, a))
QUIRE_HALVES2(__m256i, _mm256_add_epi32, vaddq_s32(a, b))
QUIRE_HALVES2(__m256i, _mm256_sub_epi32, vsubq_s32(a, b))
QUIRE_HALVES2(__m256i, _mm256_add_epi64, of_s64(vaddq_s64(s64_of(a), s64_of(b))))
QUIRE_HALVES2(__m256i, _mm256_sub_epi8, of_s8(vsubq_s8(s8_of(a), s8_of(b))))
QUIRE_HALVES2(__m256i, _mm256_max_epi32, vmaxq_s32(a, b))
QUIRE_HALVES2(__m256i, _mm256_min_epu32, of_u32(vminq_u32(u32_of(a), u32_of(b))))
QUIRE_HALVES2(__m256i, _mm256_cmpeq_epi8, of_u8(vceqq_s8(s8_of(a), s8_of(b))))
QUIRE_HALVES2(__m256i, _mm256_cmpeq_epi32, of_u32(vceqq_s32(a, b)))
QUIRE_HALVES2(__m256i, _mm256_cmpeq_epi64, of_u64(vceqq_s64(s64_of(a), s64_of(b))))
QUIRE_HALVES2(__m256i, _mm256_cmpgt_epi32, of_u32(vcgtq_s32(a, b)))
QUIRE_HALVES2(__m256i, _mm256_mul_epu32, of_u64(vmull_u32(vmovn_u64(u64_of(a)), vmovn_u64(u64_of(b)))))
QUIRE_HALVES2(__m256i, _mm256_unpacklo_epi16, of_s16(vzip1q_s16(s16_of(a), s16_of(b))))
QUIRE_HALVES2(__m256i, _mm256_unpackhi_epi16, of_s16(vzip2q_s16(s16_of(a), s16_of(b))))
QUIRE_HALVES2(__m256i, _mm256_unpacklo_epi32, vzip1q_s32(a, b))
QUIRE_HALVES2(__m256i, _mm256_unpackhi_epi32, vzip2q_s32(a, b))
QUIRE_HALVES2(__m256i, _mm256_unpacklo_epi64, of_s64(vzip1q_s64(s64_of(a), s64_of(b))))
QUIRE_HALVES2(__m256i, _mm256_unpackhi_epi64, of_s64(vzip2q_s64(s64_of(a), s64_of(b))))
QUIRE_HALVES2(__m256i, _mm256_packs_epi32, of_s16(vqmovn_high_s32(vqmovn_s32(a), b)))
QUIRE_HALVES2(__m256i, _mm256_packs_epi16, of_s8(vqmovn_high_s16(vqmovn_s16(s16_of(a)), s16_of(b))))
QUIRE_HALVES2(__m256i, _mm256_packus_epi32, of_u16(vqmovun_high_s32(vqmovun_s32(a), b)))
// Products of 16 bits, two and two of them added.
QUIRE_HALVES2(__m256i, _mm256_madd_epi16,
              vpaddq_s32(vmull_s16(vget_low_s16(s16_of(a)), vget_low_s16(s16_of(b))),
                         vmull_high_s16(s16_of(a), s16_of(b))))
// Zero where an index has its upper bit set.
QUIRE_HALVES2(__m256i, _mm256_shuffle_epi8, of_u8(vqtbl1q_u8(u8_of(a), vandq_u8(u8_of(b), vdupq_n_u8(0x8f)))))
QUIRE_HALVES3(__m256i, _mm256_blendv_epi8,
              of_s8(vbslq_s8(vreinterpretq_u8_s8(vshrq_n_s8(s8_of(c), 7)), s8_of(b), s8_of(a))))

// Shifts by a number or by what a vector's first element says; by more bits than there are gives zero, or signs.
QUIRE_M256 int32x4_t shifted_32(int32x4_t v, int by) {
  return of_u32(vshlq_u32(u32_of(v), vdupq_n_s32(by)));
}
QUIRE_M256 int32x4_t shifted_16(int32x4_t v, int by) {
  return of_u16(vshlq_u16(u16_of(v), vdupq_n_s16(static_cast<int16_t>(by))));
}
QUIRE_M256 __m256i _mm256_slli_epi32(__m256i v, int by) {
  return {shifted_32(v.lo, by), shifted_32(v.hi, by)};
}
QUIRE_M256 __m256i _mm256_srli_epi32(__m256i v, int by) {
  return _mm256_slli_epi32(v, -by);
}
QUIRE_M256 __m256i _mm256_srai_epi32(__m256i v, int by) {
  return {vshlq_s32(v.lo, vdupq_n_s32(-by)), vshlq_s32(v.hi, vdupq_n_s32(-by))};
}
QUIRE_M256 __m256i _mm256_slli_epi16(__m256i v, int by) {
  return {shifted_16(v.lo, by), shifted_16(v.hi, by)};
}
QUIRE_M256 __m256i _mm256_srli_epi16(__m256i v, int by) {
  return _mm256_slli_epi16(v, -by);
}
QUIRE_M256 __m256i _mm256_slli_epi64(__m256i v, int by) {
  const int64x2_t shift = vdupq_n_s64(by);
  return {of_u64(vshlq_u64(u64_of(v.lo), shift)), of_u64(vshlq_u64(u64_of(v.hi), shift))};
}
QUIRE_M256 __m256i _mm256_srli_epi64(__m256i v, int by) {
  return _mm256_slli_epi64(v, -by);
}
QUIRE_M256 __m256i _mm256_sll_epi32(__m256i v, __m128i by) {
  return _mm256_slli_epi32(v, vgetq_lane_s32(by, 0));
}
QUIRE_M256 __m256i _mm256_srl_epi32(__m256i v, __m128i by) {
  return _mm256_srli_epi32(v, vgetq_lane_s32(by, 0));
}
QUIRE_M256 __m256i _mm256_srl_epi16(__m256i v, __m128i by) {
  return _mm256_srli_epi16(v, vgetq_lane_s32(by, 0));
}

QUIRE_M256 __m128i _mm256_castsi256_si128(__m256i v) {
  return v.lo;
}
QUIRE_M256 __m256i _mm256_castsi128_si256(__m128i v) {
  return {v, v};
}
QUIRE_M256 __m128i _mm256_extracti128_si256(__m256i v, int i) {
  return i == 0 ? v.lo : v.hi;
}
QUIRE_M256 __m256i _mm256_inserti128_si256(__m256i v, __m128i half, int i) {
  return i == 0 ? __m256i{half, v.hi} : __m256i{v.lo, half};
}
QUIRE_M256 __m256i _mm256_set_m128i(__m128i hi, __m128i lo) {
  return {lo, hi};
}
QUIRE_M256 __m256i _mm256_broadcastsi128_si256(__m128i v) {
  return {v, v};
}
QUIRE_M256 __m256i _mm256_permute2x128_si256(__m256i a, __m256i b, int of) {
  const auto half = [&](int i) { return i == 0 ? a.lo : i == 1 ? a.hi : i == 2 ? b.lo : b.hi; };
  return {half(of & 3), half(of >> 4 & 3)};
}
QUIRE_M256 __m256i _mm256_permute4x64_epi64(__m256i v, int of) {
  const auto quarter = [&](int i) {
    const int64x2_t half = s64_of((i & 2) == 0 ? v.lo : v.hi);
    return (i & 1) == 0 ? vget_low_s64(half) : vget_high_s64(half);
  };
  return {of_s64(vcombine_s64(quarter(of & 3), quarter(of >> 2 & 3))),
          of_s64(vcombine_s64(quarter(of >> 4 & 3), quarter(of >> 6 & 3)))};
}
QUIRE_M256 __m256i _mm256_permutevar8x32_epi32(__m256i v, __m256i at) {
  const uint8x16x2_t table{u8_of(v.lo), u8_of(v.hi)};
  const auto of = [&](int32x4_t i) __attribute__((always_inline)) {
    const uint32x4_t first = vmulq_n_u32(vandq_u32(u32_of(i), vdupq_n_u32(7)), 0x04040404);
    return of_u8(vqtbl2q_u8(table, vreinterpretq_u8_u32(vaddq_u32(first, vdupq_n_u32(0x03020100)))));
  };
  return {of(at.lo), of(at.hi)};
}
// Elements of b where `of` has a bit.
QUIRE_M256 __m256i _mm256_blend_epi32(__m256i a, __m256i b, int of) {
  const auto half = [](int32x4_t x, int32x4_t y, int bits) __attribute__((always_inline)) {
    return int32x4_t{bits & 1 ? y[0] : x[0], bits & 2 ? y[1] : x[1], bits & 4 ? y[2] : x[2], bits & 8 ? y[3] : x[3]};
  };
  return {half(a.lo, b.lo, of), half(a.hi, b.hi, of >> 4)};
}
// Four elements of 16 bits, from `first` on, of each half in another order.
QUIRE_M256 int32x4_t shuffled_four(int32x4_t v, int first, int of) {
  int16x8_t s = s16_of(v);
  const int16x8_t from = s;
  for (int i = 0; i < 4; ++i) s[first + i] = from[first + (of >> 2 * i & 3)];
  return of_s16(s);
}
QUIRE_M256 __m256i _mm256_shufflelo_epi16(__m256i v, int of) {
  return {shuffled_four(v.lo, 0, of), shuffled_four(v.hi, 0, of)};
}
QUIRE_M256 __m256i _mm256_shufflehi_epi16(__m256i v, int of) {
  return {shuffled_four(v.lo, 4, of), shuffled_four(v.hi, 4, of)};
}
QUIRE_M256 int _mm256_movemask_epi8(__m256i v) {
  const int8x16_t at{0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7};
  const auto of = [&](int32x4_t half) {
    const uint8x16_t bits = vshlq_u8(vshrq_n_u8(u8_of(half), 7), at);
    return static_cast<unsigned>(vaddv_u8(vget_low_u8(bits)) | vaddv_u8(vget_high_u8(bits)) << 8);
  };
  return static_cast<int>(of(v.lo) | of(v.hi) << 16);
}

QUIRE_M256 __m256i wider(int16x8_t v) {
  return {vmovl_s16(vget_low_s16(v)), vmovl_high_s16(v)};
}
QUIRE_M256 __m256i wider(uint16x8_t v) {
  return {of_u32(vmovl_u16(vget_low_u16(v))), of_u32(vmovl_high_u16(v))};
}
QUIRE_M256 __m256i _mm256_cvtepi8_epi32(__m128i v) {
  return wider(vmovl_s8(vget_low_s8(s8_of(v))));
}
QUIRE_M256 __m256i _mm256_cvtepu8_epi32(__m128i v) {
  return wider(vmovl_u8(vget_low_u8(u8_of(v))));
}
QUIRE_M256 __m256i _mm256_cvtepu16_epi32(__m128i v) {
  return wider(u16_of(v));
}
QUIRE_M256 __m256i _mm256_cvtepi8_epi16(__m128i v) {
  return {of_s16(vmovl_s8(vget_low_s8(s8_of(v)))), of_s16(vmovl_high_s8(s8_of(v)))};
}
QUIRE_M256 __m256i _mm256_cvtepu8_epi16(__m128i v) {
  return {of_u16(vmovl_u8(vget_low_u8(u8_of(v)))), of_u16(vmovl_high_u8(u8_of(v)))};
}
QUIRE_M256 __m256i _mm256_cvtepu32_epi64(__m128i v) {
  return {of_u64(vmovl_u32(vget_low_u32(u32_of(v)))), of_u64(vmovl_high_u32(u32_of(v)))};
}
QUIRE_M256 __m256i _mm256_cvtepi32_epi64(__m128i v) {
  return {of_s64(vmovl_s32(vget_low_s32(v))), of_s64(vmovl_high_s32(v))};
}

// ---- Integers, 128 bits

QUIRE_M256 __m128i _mm_loadu_si128(const __m128i* p) {
  return of_u8(vld1q_u8(reinterpret_cast<const uint8_t*>(p)));
}
QUIRE_M256 __m128i _mm_loadl_epi64(const __m128i* p) {
  return of_u8(vcombine_u8(vld1_u8(reinterpret_cast<const uint8_t*>(p)), vdup_n_u8(0)));
}
QUIRE_M256 void _mm_storeu_si128(__m128i* p, __m128i v) {
  vst1q_u8(reinterpret_cast<uint8_t*>(p), u8_of(v));
}
QUIRE_M256 void _mm_store_si128(__m128i* p, __m128i v) {
  _mm_storeu_si128(p, v);
}
QUIRE_M256 __m128i _mm_setzero_si128() {
  return vdupq_n_s32(0);
}
QUIRE_M256 __m128i _mm_set1_epi8(char x) {
  return of_s8(vdupq_n_s8(static_cast<int8_t>(x)));
}
QUIRE_M256 __m128i _mm_set1_epi16(int16_t x) {
  return of_s16(vdupq_n_s16(x));
}
QUIRE_M256 __m128i _mm_set1_epi32(int32_t x) {
  return vdupq_n_s32(x);
}
QUIRE_M256 __m128i _mm_setr_epi32(int a, int b, int c, int d) {
  return int32x4_t{a, b, c, d};
}
template <class... Bytes>
QUIRE_M256 __m128i _mm_setr_epi8(Bytes... b) {
  return of_s8(int8x16_t{static_cast<int8_t>(b)...});
}
template <class... Shorts>
QUIRE_M256 __m128i _mm_setr_epi16(Shorts... s) {
  return of_s16(int16x8_t{static_cast<int16_t>(s)...});
}
QUIRE_M256 __m128i _mm_cvtsi32_si128(int x) {
  return int32x4_t{x, 0, 0, 0};
}
QUIRE_M256 __m128i _mm_cvtsi64_si128(long long x) {
  return of_s64(int64x2_t{x, 0});
}
QUIRE_M256 int _mm_cvtsi128_si32(__m128i v) {
  return vgetq_lane_s32(v, 0);
}
QUIRE_M256 __m128i _mm_and_si128(__m128i a, __m128i b) {
  return vandq_s32(a, b);
}
QUIRE_M256 __m128i _mm_andnot_si128(__m128i a, __m128i b) {
  return vbicq_s32(b, a);
}
QUIRE_M256 __m128i _mm_add_epi32(__m128i a, __m128i b) {
  return vaddq_s32(a, b);
}
QUIRE_M256 __m128i _mm_max_epi32(__m128i a, __m128i b) {
  return vmaxq_s32(a, b);
}
QUIRE_M256 __m128i _mm_mullo_epi32(__m128i a, __m128i b) {
  return vmulq_s32(a, b);
}
QUIRE_M256 __m128i _mm_cmpeq_epi8(__m128i a, __m128i b) {
  return of_u8(vceqq_s8(s8_of(a), s8_of(b)));
}
QUIRE_M256 __m128i _mm_slli_epi16(__m128i v, int by) {
  return shifted_16(v, by);
}
QUIRE_M256 __m128i _mm_srli_epi16(__m128i v, int by) {
  return shifted_16(v, -by);
}
QUIRE_M256 __m128i _mm_srai_epi32(__m128i v, int by) {
  return vshlq_s32(v, vdupq_n_s32(-by));
}
QUIRE_M256 __m128i _mm_shuffle_epi8(__m128i v, __m128i at) {
  return of_u8(vqtbl1q_u8(u8_of(v), vandq_u8(u8_of(at), vdupq_n_u8(0x8f))));
}
QUIRE_M256 __m128i _mm_shuffle_epi32(__m128i v, int of) {
  return int32x4_t{v[of & 3], v[of >> 2 & 3], v[of >> 4 & 3], v[of >> 6 & 3]};
}
QUIRE_M256 __m128i _mm_unpackhi_epi64(__m128i a, __m128i b) {
  return of_s64(vzip2q_s64(s64_of(a), s64_of(b)));
}
QUIRE_M256 __m128i _mm_packs_epi32(__m128i a, __m128i b) {
  return of_s16(vqmovn_high_s32(vqmovn_s32(a), b));
}
QUIRE_M256 __m128i _mm_packus_epi32(__m128i a, __m128i b) {
  return of_u16(vqmovun_high_s32(vqmovun_s32(a), b));
}
QUIRE_M256 __m128i _mm_packus_epi16(__m128i a, __m128i b) {
  return of_u8(vqmovun_high_s16(vqmovun_s16(s16_of(a)), s16_of(b)));
}
QUIRE_M256 __m128i _mm_cvtepu8_epi32(__m128i v) {
  return of_u32(vmovl_u16(vget_low_u16(vmovl_u8(vget_low_u8(u8_of(v))))));
}
QUIRE_M256 __m128i _mm_cvtepu8_epi16(__m128i v) {
  return of_u16(vmovl_u8(vget_low_u8(u8_of(v))));
}
QUIRE_M256 __m128i _mm_cvtepi8_epi16(__m128i v) {
  return of_s16(vmovl_s8(vget_low_s8(s8_of(v))));
}

// ---- The rest

constexpr int _MM_HINT_T0 = 3;
QUIRE_M256 void _mm_prefetch(const char* p, int) {
  __builtin_prefetch(p);
}
QUIRE_M256 void _mm_pause() {
  asm volatile("yield");
}

}  // namespace

#undef QUIRE_HALVES2
#undef QUIRE_HALVES3
#undef QUIRE_M256
