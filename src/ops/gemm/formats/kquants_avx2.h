// Q4_K, Q5_K and Q6_K (quant/kquants.cpp) with AVX2, in the form that parts_avx2.h describes: units of 256 columns.
// Everything has internal linkage.
#pragma once

#include "ops/gemm/formats/parts_avx2.h"

namespace quire::gemm {
namespace {

// Q4_K and Q5_K: byte j is scale j, or minimum j, 0 to 63, of 8 from the twelve bytes at `s`.
struct EightSixes {
  uint64_t scales, minima;
};
inline EightSixes q4_k_scales(const std::byte* s) {
  constexpr uint32_t kSix = 0x3f3f3f3f, kFour = 0x0f0f0f0f, kTop = 0x30303030;
  uint32_t u[3];
  std::memcpy(u, s, sizeof u);
  const auto both = [](uint32_t first, uint32_t last) { return first | uint64_t{last} << 32; };
  return {both(u[0] & kSix, (u[2] & kFour) | (u[0] >> 2 & kTop)),
          both(u[1] & kSix, (u[2] >> 4 & kFour) | (u[1] >> 2 & kTop))};
}

template <bool kFifthBit>
inline void decode_q45_k(const std::byte* from, int64_t cols, float* to) {
  constexpr int64_t kCodes = kFifthBit ? 48 : 16;
  for (int64_t k = 0; k < cols; k += 256, from += kCodes + 128) {
    const EightSixes sixes = q4_k_scales(from + 4);
    alignas(32) float scales[8], minima[8];
    _mm256_store_ps(scales, scaled_bytes(sixes.scales, 0, _mm256_broadcastss_ps(half_at(from))));
    _mm256_store_ps(minima, scaled_bytes(sixes.minima, 0, _mm256_broadcastss_ps(half_at(from + 2))));
    for (int s = 0; s < 8; ++s, to += 32) {
      __m256i q = nibbles(load32(from + kCodes + s / 2 * 32), s % 2 != 0);
      if constexpr (kFifthBit)
        q = _mm256_or_si256(q, fifth(load32(from + 16), _mm256_set1_epi8(static_cast<char>(1 << s))));
      widen32(q, scales[s], minima[s], to);
    }
  }
}

inline void decode_q6_k(const std::byte* from, int64_t cols, float* to) {
  for (int64_t k = 0; k < cols; k += 256, from += 210) {
    const __m256 d = _mm256_broadcastss_ps(half_at(from + 208));
    const __m128i bytes = load16(from + 192);
    alignas(32) float scales[16];
    const auto scaled = [&](__m128i eight) {
      return _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight)));
    };
    _mm256_store_ps(scales, scaled(bytes));
    _mm256_store_ps(scales + 8, scaled(_mm_unpackhi_epi64(bytes, bytes)));
    for (int s = 0; s < 8; ++s, to += 32) {
      const __m256i low = nibbles(load32(from + s / 4 * 64 + s % 2 * 32), s % 4 >= 2);
      const __m256i top = _mm256_slli_epi16(crumbs(load32(from + 128 + s / 4 * 32), s % 4), 4);
      const __m256i q = _mm256_sub_epi8(_mm256_or_si256(low, top), _mm256_set1_epi8(32));
      widen16(_mm256_castsi256_si128(q), scales[2 * s], to);
      widen16(_mm256_extracti128_si256(q, 1), scales[2 * s + 1], to + 16);
    }
  }
}

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
    } else if constexpr (kByteCodes) {
      put_nibbles(to, s, four, four + 8, w);
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

template <>
struct OnAvx2<DType::kQ4_K> {
  static constexpr quant::Decoder kRows = decode_q45_k<false>;
  template <bool kRepacked>
  using Panel = DecodeQ45K<false>;
};

template <>
struct OnAvx2<DType::kQ5_K> {
  static constexpr quant::Decoder kRows = decode_q45_k<true>;
  template <bool kRepacked>
  using Panel = DecodeQ45K<true>;
};

template <>
struct OnAvx2<DType::kQ6_K> {
  static constexpr quant::Decoder kRows = decode_q6_k;
  template <bool kRepacked>
  using Panel = DecodeQ6K;
};

}  // namespace
}  // namespace quire::gemm
