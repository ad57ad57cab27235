// Decoders of K-quants to panels, in the form that formats_avx2.h describes: units of 256 columns. Everything
// has internal linkage.
#pragma once

#include "ops/gemm/formats_avx2.h"

namespace quire::gemm {
namespace {

// Bytes of the nibbles from bit `at` of w on, and above them `count` bits of `top` from bit `from` on.
[[gnu::always_inline]] inline __m256i joined(__m256i w, int at, __m256i top, int from, int count) {
  const __m256i low = _mm256_and_si256(at == 0 ? w : _mm256_srli_epi16(w, at), _mm256_set1_epi8(15));
  const __m256i moved = from < 4 ? _mm256_slli_epi16(top, 4 - from) : from > 4 ? _mm256_srli_epi16(top, from - 4) : top;
  const auto mask = static_cast<char>(((1 << count) - 1) << 4);
  return _mm256_or_si256(low, _mm256_and_si256(moved, _mm256_set1_epi8(mask)));
}

// Eight scales and eight minima of 6 bits in three words (quant/kquants.cpp).
struct SixBits {
  SixBits(__m256i u0, __m256i u1, __m256i u2) {
    const __m256i six = _mm256_set1_epi8(0x3f), four = _mm256_set1_epi8(0x0f), top = _mm256_set1_epi8(0x30);
    const auto upper = [&](__m256i low, __m256i u) {
      return _mm256_or_si256(_mm256_and_si256(low, four), _mm256_and_si256(_mm256_srli_epi32(u, 2), top));
    };
    scales[0] = _mm256_and_si256(u0, six);
    minima[0] = _mm256_and_si256(u1, six);
    scales[1] = upper(u2, u0);
    minima[1] = upper(_mm256_srli_epi32(u2, 4), u1);
  }
  __m256i scales[2], minima[2];  // bytes of sub-blocks 0 to 3 and 4 to 7
};

// Q4_K and Q5_K: low nibbles are one sub-block, high ones another, whose codes are 16 times too large in
// Q4_K.
template <bool kFifthBit>
struct DecodeQ45K : Format<kFifthBit ? DType::kQ5_K : DType::kQ4_K, Shape<2, true, true, 0, kFifthBit ? 0 : 4>> {
  static constexpr int kCodes = kFifthBit ? 48 : 16;

  template <class Rows, class To>
  [[gnu::always_inline]] static void decode(const Rows& rows, int, To& to) {
    const Words head = rows.words(0, 0, 0);
    to.begin_unit(low_halves(head.of[0]), high_halves(head.of[0]));
    const SixBits six(head.of[1], head.of[2], head.of[3]);
    Words fifth[2] = {};  // a bit of each sub-block
    if constexpr (kFifthBit)
      for (int i = 0; i < 2; ++i) fifth[i] = rows.words(0, 0, 16 + 16 * i);
#pragma GCC unroll 4
    for (int s = 0; s < 4; ++s) {
      to.begin_step(s);
#pragma GCC unroll 2
      for (int b = 0; b < 2; ++b) {
        to.factor(s, b, unsigned_byte(six.scales[s / 2], 2 * s % 4 + b));
        to.offset(s, b, unsigned_byte(six.minima[s / 2], 2 * s % 4 + b));
      }
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) {
        const Words w = rows.words(0, 0, kCodes + 32 * s + 16 * i);
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) put(to, s, 4 * i + j, w.of[j], fifth[i].of[j]);
      }
      to.end_step(s);
    }
    to.end_unit();
  }

 private:
  template <class To>
  [[gnu::always_inline]] static void put(To& to, int s, int four, __m256i w, __m256i fifth) {
    if constexpr (kFifthBit) {
      put_unsigned(to, s, four, joined(w, 0, fifth, 2 * s, 1));
      put_unsigned(to, s, four + 8, joined(w, 4, fifth, 2 * s + 1, 1));
    } else {
      const __m256i low = _mm256_set1_epi16(0x0f), high = _mm256_set1_epi16(0xf0), odd = _mm256_srli_epi16(w, 8);
      to.codes(s, 2 * four, _mm256_and_si256(w, low));
      to.codes(s, 2 * four + 1, _mm256_and_si256(odd, low));
      to.codes(s, 2 * (four + 8), _mm256_and_si256(w, high));
      to.codes(s, 2 * (four + 8) + 1, _mm256_and_si256(odd, high));
    }
  }
};

// 128 bytes with the low four bits of each code, 64 with the upper two, 16 signed scales, d.
struct DecodeQ6K : Format<DType::kQ6_K, Shape<4, true, false>> {
  static constexpr int kBias = 32, kStepsAtOnce = 2;

  template <class Rows, class To>
  [[gnu::always_inline]] static void decode(const Rows& rows, int, To& to) {
    const Words scales = rows.words(0, 0, 192);
    to.begin_unit(rows.halves(0, 0, 208), _mm256_setzero_ps());
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {  // two steps: low nibbles, then high ones
#pragma GCC unroll 2
      for (int s = 2 * h; s < 2 * h + 2; ++s) {
        to.begin_step(s);
#pragma GCC unroll 4
        for (int g = 0; g < 4; ++g) to.factor(s, g, signed_byte(scales.of[s], g));
      }
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) {
        const Words top = rows.words(0, 0, 128 + 32 * h + 16 * i);
#pragma GCC unroll 2
        for (int k = 0; k < 2; ++k) {  // columns from 32 k on
          const Words w = rows.words(0, 0, 64 * h + 32 * k + 16 * i);
#pragma GCC unroll 4
          for (int j = 0; j < 4; ++j) {
            const int four = 8 * k + 4 * i + j;
            put_unsigned(to, 2 * h, four, joined(w.of[j], 0, top.of[j], 2 * k, 2));
            put_unsigned(to, 2 * h + 1, four, joined(w.of[j], 4, top.of[j], 4 + 2 * k, 2));
          }
        }
      }
      to.end_step(2 * h);
      to.end_step(2 * h + 1);
    }
    to.end_unit();
  }
};

}  // namespace
}  // namespace quire::gemm
