// MXFP4 and NVFP4 (quant/fp4.cpp) with AVX2, in the form that parts_avx2.h describes. Everything has internal linkage.
#pragma once

#include "ops/gemm/formats/parts_avx2.h"
#include "quant/fp4.h"

namespace quire::gemm {
namespace {

// Twice the values of E2M1 for each of 32 codes.
inline __m256i e2m1_doubled(__m256i codes) {
  const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(quant::kE2m1Doubled));
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values), codes);
}

// Twice the values of E2M1.
inline __m256i e2m1_table() {
  return twice(_mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12));
}

// Half of four UE4M3. Moved to where a half has its exponent and mantissa, subnormals included, they are 2^-8 of what
// they are; 0x7f stands for zero.
inline __m128 half_ue4m3(const std::byte* from) {
  int32_t four;
  std::memcpy(&four, from, 4);
  const __m128i most = _mm_set1_epi8(0x7f), u = _mm_and_si128(_mm_cvtsi32_si128(four), most);
  const __m128i kept = _mm_andnot_si128(_mm_cmpeq_epi8(u, most), u);
  const __m128 small = _mm_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(kept), 7));
  return _mm_mul_ps(small, _mm_set1_ps(0x1p7f));
}

inline void decode_nvfp4(const std::byte* from, int64_t cols, float* to) {
  for (int64_t k = 0; k < cols; k += 64, from += 36) {
    alignas(16) float scales[4];
    _mm_store_ps(scales, half_ue4m3(from));
    for (int i = 0; i < 2; ++i, to += 32) {
      // Each eight bytes hold 16 elements; in order, a half each.
      const __m256i q = _mm256_permute4x64_epi64(e2m1_doubled(nibbles(load16(from + 4 + 16 * i))), 0xd8);
      widen16(_mm256_castsi256_si128(q), scales[2 * i], to);
      widen16(_mm256_extracti128_si256(q, 1), scales[2 * i + 1], to + 16);
    }
  }
}

// 64 columns: four scales, then 8 bytes of codes for each 16 columns.
struct DecodeNvfp4 : Format<DType::kNVFP4, Shape<4, false, false, 8>> {
  static constexpr float kUnit = 0x1p7f;  // codes are twice the value, factors 2^-8 of it

  template <class Rows, class To>
  [[gnu::always_inline]] static void decode(const Rows& rows, int steps, To& to) {
    const __m256i table = e2m1_table();
    for (int s = 0; s < steps; ++s) {
      to.begin_step(s);
      __m256 scales[4];
      read_scales(rows.word(s, 0, 0), scales);
#pragma GCC unroll 4
      for (int g = 0; g < 4; ++g) to.factor(s, g, scales[g]);
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) {
        const Words w = rows.words(s, 0, 4 + 16 * i);
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) {
          const int four = 8 * i + j / 2 * 4 + j % 2;
          put_looked_up(to, s, four, four + 2, w.of[j], table);
        }
      }
      to.end_step(s);
    }
  }
  // Four bytes of each row, UE4M3, as 2^-8 of what they are: that is a half when they are moved to where it
  // has its exponent and mantissa, subnormals included. 0x7f stands for zero.
  [[gnu::always_inline]] static void read_scales(__m256i words, __m256 (&of)[4]) {
    const __m256i most = _mm256_set1_epi8(0x7f), u = _mm256_and_si256(words, most);
    const __m256i kept = _mm256_andnot_si256(_mm256_cmpeq_epi8(u, most), u);
    const __m256i by_byte = twice(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    const __m256i by_group =
        _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(kept, by_byte), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    const auto halves = [](__m128i two) { return _mm256_slli_epi16(_mm256_cvtepu8_epi16(two), 7); };
    const __m256i low = halves(_mm256_castsi256_si128(by_group)), high = halves(_mm256_extracti128_si256(by_group, 1));
    of[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(low));
    of[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(low, 1));
    of[2] = _mm256_cvtph_ps(_mm256_castsi256_si128(high));
    of[3] = _mm256_cvtph_ps(_mm256_extracti128_si256(high, 1));
  }
};

template <>
struct OnAvx2<DType::kNVFP4> {
  static constexpr quant::Decoder kRows = decode_nvfp4;
  template <bool kRepacked>
  using Panel = DecodeNvfp4;
};

inline void decode_mxfp4(const std::byte* from, int64_t cols, float* to) {
  for (int64_t k = 0; k < cols; k += 32, from += 17, to += 32)
    widen32(e2m1_doubled(nibbles(load16(from + 1))), 0.5f * quant::decode_e8m0(std::to_integer<uint8_t>(*from)), to);
}

struct DecodeMxfp4 : Format<DType::kMXFP4, Shape<2, false, false, 8>> {
  static constexpr float kUnit = 0.5f;

  template <class Rows, class To>
  [[gnu::always_inline]] static void decode(const Rows& rows, int steps, To& to) {
    const __m256i table = e2m1_table();
    for (int s = 0; s < steps; ++s) {
      to.begin_step(s);
#pragma GCC unroll 2
      for (int b = 0; b < 2; ++b) {
        to.factor(s, b, scale_of(rows.bytes(s, b, 0)));
        const Words w = rows.words(s, b, 1);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) put_looked_up(to, s, 8 * b + i, 8 * b + 4 + i, w.of[i], table);
      }
      to.end_step(s);
    }
  }
  static __m256 scale_of(__m256i e) {
    const auto where = [&](int value, int bits) {
      return _mm256_and_si256(_mm256_cmpeq_epi32(e, _mm256_set1_epi32(value)), _mm256_set1_epi32(bits));
    };
    // 2^-127 for 0, which is subnormal, and a NaN for 255, which has all bits of an infinity already.
    const __m256i f = _mm256_or_si256(_mm256_slli_epi32(e, 23), where(0, 0x00400000));
    return _mm256_castsi256_ps(_mm256_or_si256(f, where(255, 0x00400000)));
  }
};

template <>
struct OnAvx2<DType::kMXFP4> {
  static constexpr quant::Decoder kRows = decode_mxfp4;
  template <bool kRepacked>
  using Panel = DecodeMxfp4;
};

}  // namespace
}  // namespace quire::gemm
