// Q2_K and Q3_K (quant/kquants.cpp) with AVX2, in the form that parts_avx2.h describes. Everything has internal
// linkage.
#pragma once

#include "ops/gemm/formats/parts_avx2.h"
#include "ops/gemm/sub_scales.h"

namespace quire::gemm {
namespace {

inline void decode_q2_k(const std::byte* from, int64_t cols, float* to) {
  for (int64_t k = 0; k < cols; k += 256, from += 84) {
    const __m256 d = _mm256_broadcastss_ps(half_at(from + 80)), dmin = _mm256_broadcastss_ps(half_at(from + 82));
    alignas(32) float scales[16], minima[16];
    for (int j = 0; j < 16; j += 8) {
      uint64_t both;
      std::memcpy(&both, from + j, 8);
      constexpr uint64_t kFour = 0x0f0f'0f0f'0f0f'0f0f;
      _mm256_store_ps(scales + j, scaled_bytes(both & kFour, 0, d));
      _mm256_store_ps(minima + j, scaled_bytes(both >> 4 & kFour, 0, dmin));
    }
    for (int s = 0; s < 8; ++s, to += 32) {
      const __m256i q = crumbs(load32(from + 16 + s / 4 * 32), s % 4);
      widen16(_mm256_castsi256_si128(q), scales[2 * s], minima[2 * s], to);
      widen16(_mm256_extracti128_si256(q, 1), scales[2 * s + 1], minima[2 * s + 1], to + 16);
    }
  }
}

inline void decode_q3_k(const std::byte* from, int64_t cols, float* to) {
  const __m256i four = _mm256_set1_epi8(4);
  for (int64_t k = 0; k < cols; k += 256, from += 110) {
    const __m256 d = _mm256_broadcastss_ps(half_at(from + 108));
    const SixteenSixes sixes = q3_k_scales(from + 96);
    alignas(32) float scales[16];
    for (int j = 0; j < 2; ++j) _mm256_store_ps(scales + 8 * j, scaled_bytes(sixes.of[j], 32, d));
    const __m256i high = load32(from);
    for (int s = 0; s < 8; ++s, to += 32) {
      // Four is taken away where the third bit is not set.
      const __m256i third = _mm256_and_si256(_mm256_set1_epi8(static_cast<char>(1 << s)), high);
      const __m256i missing = _mm256_and_si256(_mm256_cmpeq_epi8(third, _mm256_setzero_si256()), four);
      const __m256i q = _mm256_sub_epi8(crumbs(load32(from + 32 + s / 4 * 32), s % 4), missing);
      widen16(_mm256_castsi256_si128(q), scales[2 * s], to);
      widen16(_mm256_extracti128_si256(q, 1), scales[2 * s + 1], to + 16);
    }
  }
}

// Bits [from, from + count) of every byte of w, at bit `to`.
[[gnu::always_inline]] inline __m256i moved(__m256i w, int from, int count, int to) {
  const __m256i at = from < to ? _mm256_slli_epi16(w, to - from) : from > to ? _mm256_srli_epi16(w, from - to) : w;
  return _mm256_and_si256(at, _mm256_set1_epi8(static_cast<char>(((1 << count) - 1) << to)));
}

// Two bits of 32 bytes are a code of each of 32 columns, and the bytes those of a half of 256 columns, which are two
// steps: put(step, four, group, w, j) for every four columns, group of 32 of the half and word j of 8. The codes begin
// at byte `first`.
template <class Rows, class Put>
[[gnu::always_inline]] inline void each_crumb(const Rows& rows, int first, int half, Put&& put) {
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const Words w = rows.words(0, 0, first + 32 * half + 16 * i);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j)
#pragma GCC unroll 4
      for (int g = 0; g < 4; ++g) put(2 * half + g / 2, g % 2 * 8 + 4 * i + j, g, w.of[j], 4 * i + j);
  }
}

// 16 bytes of a scale and a minimum, 64 of codes, d and dmin.
struct DecodeQ2K : Format<DType::kQ2_K, Shape<4, true, true>> {
  static constexpr int kStepsAtOnce = 2;

  template <class Rows, class To>
  [[gnu::always_inline]] static void decode(const Rows& rows, int, To& to) {
    const Words both = rows.words(0, 0, 0);
    const __m256i halves = rows.word(0, 0, 80);
    to.begin_unit(low_halves(halves), high_halves(halves));
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
#pragma GCC unroll 2
      for (int s = 2 * h; s < 2 * h + 2; ++s) {
        to.begin_step(s);
        const __m256i scales = moved(both.of[s], 0, 4, 0), minima = moved(both.of[s], 4, 4, 0);
#pragma GCC unroll 4
        for (int g = 0; g < 4; ++g) {
          to.factor(s, g, unsigned_byte(scales, g));
          to.offset(s, g, unsigned_byte(minima, g));
        }
      }
      each_crumb(
          rows, 16, h, [&](int s, int four, int g, __m256i w, int) __attribute__((always_inline)) {
            put_unsigned(to, s, four, moved(w, 2 * g, 2, 0));
          });
      to.end_step(2 * h);
      to.end_step(2 * h + 1);
    }
    to.end_unit();
  }
};

// 32 bytes of third bits, 64 of the other two, 12 of scales of 6 bits (quant/kquants.cpp), d.
struct DecodeQ3K : Format<DType::kQ3_K, Shape<4, true, false>> {
  static constexpr int kBias = 4, kStepsAtOnce = 2;

  template <class Rows, class To>
  [[gnu::always_inline]] static void decode(const Rows& rows, int, To& to) {
    const Words end = end_of(rows);
    to.begin_unit(low_halves(end.of[3]), _mm256_setzero_ps());
    __m256i scales[4];  // of each step
    read_scales(end, scales);
    const Words third[2] = {rows.words(0, 0, 0), rows.words(0, 0, 16)};
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
#pragma GCC unroll 2
      for (int s = 2 * h; s < 2 * h + 2; ++s) {
        to.begin_step(s);
#pragma GCC unroll 4
        for (int g = 0; g < 4; ++g) to.factor(s, g, signed_byte(scales[s], g));
      }
      each_crumb(
          rows, 32, h, [&](int s, int four, int g, __m256i w, int j) __attribute__((always_inline)) {
            const __m256i top = moved(third[j / 4].of[j % 4], 4 * h + g, 1, 2);
            put_unsigned(to, s, four, _mm256_or_si256(moved(w, 2 * g, 2, 0), top));
          });
      to.end_step(2 * h);
      to.end_step(2 * h + 1);
    }
    to.end_unit();
  }

 private:
  // The scales, then d and two bytes of anything.
  template <class Rows>
  [[gnu::always_inline]] static Words end_of(const Rows& rows) {
    if constexpr (Rows::kRepacked) return rows.words(0, 0, 96);
    const Words w = rows.words(0, 0, 94);  // the block ends with them
    const auto word = [&](int i) {
      return _mm256_or_si256(_mm256_srli_epi32(w.of[i], 16), _mm256_slli_epi32(w.of[i + 1], 16));
    };
    return {{word(0), word(1), word(2), _mm256_srli_epi32(w.of[3], 16)}};
  }
  // Less 32, four to a word.
  [[gnu::always_inline]] static void read_scales(const Words& end, __m256i (&of)[4]) {
    const __m256i low[2] = {end.of[0], end.of[1]}, top = end.of[2];
#pragma GCC unroll 4
    for (int s = 0; s < 4; ++s)
      of[s] = _mm256_sub_epi8(_mm256_or_si256(moved(low[s % 2], s / 2 * 4, 4, 0), moved(top, 2 * s, 2, 4)),
                              _mm256_set1_epi8(32));
  }
};

template <>
struct OnAvx2<DType::kQ2_K> {
  static constexpr quant::Decoder kRows = decode_q2_k;
  template <bool kRepacked>
  using Panel = DecodeQ2K;
};

template <>
struct OnAvx2<DType::kQ3_K> {
  static constexpr quant::Decoder kRows = decode_q3_k;
  template <bool kRepacked>
  using Panel = DecodeQ3K;
};

}  // namespace
}  // namespace quire::gemm
