// Decoders of Q2_K, Q3_K, IQ4_NL and IQ4_XS to panels, in the form that formats_avx2.h describes. Everything has
// internal linkage.
#pragma once

#include "ops/gemm/formats_avx2.h"
#include "quant/iq4.h"

namespace quire::gemm {
namespace {

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

// What a code of IQ4_NL and IQ4_XS stands for, twice.
inline __m256i iq4_table() {
  return twice(_mm_loadu_si128(reinterpret_cast<const __m128i*>(quant::kIq4Values)));
}
// 16 bytes of codes whose low nibbles are the first 16 of 32 columns, block b of a step.
template <class To>
[[gnu::always_inline]] inline void put_iq4(To& to, int step, int b, const Words& w, __m256i table) {
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) put_looked_up(to, step, 8 * b + i, 8 * b + 4 + i, w.of[i], table);
}

// 32 columns: a half d and 16 bytes of codes.
struct DecodeIq4Nl : Format<DType::kIQ4_NL, Shape<2, false, false, 8>> {
  template <class Rows, class To>
  [[gnu::always_inline]] static void decode(const Rows& rows, int steps, To& to) {
    const __m256i table = iq4_table();
    for (int s = 0; s < steps; ++s) {
      to.begin_step(s);
#pragma GCC unroll 2
      for (int b = 0; b < 2; ++b) {
        to.factor(s, b, rows.halves(s, b, 0));
        put_iq4(to, s, b, rows.words(s, b, 2), table);
      }
      to.end_step(s);
    }
  }
};

// A half d, upper bits and lower nibbles of 8 scales of 6 bits (quant/iq4.cpp), 8 times 16 bytes of codes.
struct DecodeIq4Xs : Format<DType::kIQ4_XS, Shape<2, true, false, 8>> {
  template <class Rows, class To>
  [[gnu::always_inline]] static void decode(const Rows& rows, int, To& to) {
    const __m256i table = iq4_table();
    const __m256i head = rows.word(0, 0, 0), low = rows.word(0, 0, 4);
    to.begin_unit(low_halves(head), _mm256_setzero_ps());
#pragma GCC unroll 4
    for (int s = 0; s < 4; ++s) {
      to.begin_step(s);
#pragma GCC unroll 2
      for (int b = 0; b < 2; ++b) {
        const int j = 2 * s + b;
        const __m256i four = _mm256_and_si256(_mm256_srli_epi32(low, 4 * j), _mm256_set1_epi32(15));
        const __m256i two = _mm256_and_si256(_mm256_srli_epi32(head, 12 + 2 * j), _mm256_set1_epi32(48));
        to.factor(s, b, _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_or_si256(four, two), _mm256_set1_epi32(32))));
        put_iq4(to, s, b, rows.words(0, 0, 8 + 16 * j), table);
      }
      to.end_step(s);
    }
    to.end_unit();
  }
};

}  // namespace
}  // namespace quire::gemm
