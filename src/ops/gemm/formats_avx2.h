// Decoders of block formats to panels (panel_avx2.h). A format is a struct: what its weights are made of, and
// `decode`, which fills eight rows of a panel from `steps` steps of 64 columns. A weight is kUnit * factor *
// (code - bias) (+ offset), or with kSuper d * factor * (code - bias) (- dmin * offset), where d and dmin are
// those of 256 columns. The integers are those of the formats in integer_avx512.h. Everything has internal
// linkage.
#pragma once

#include "ops/gemm/panel_avx2.h"

namespace quire::gemm {
namespace {

// How sums of a format become floats.
template <int kOfParts, bool kOfSuper, bool kWithOffsets, int kLowShift = 0, int kHighShift = kLowShift>
struct Shape {
  static constexpr int kParts = kOfParts;         // of a step: 2 of 32 columns or 4 of 16
  static constexpr bool kSuper = kOfSuper;        // whether 256 columns have a d (and a dmin) beside their factors
  static constexpr bool kOffsets = kWithOffsets;  // whether a weight is a product plus an offset
  static constexpr int kPairs = 32 / kOfParts;    // of columns in a part
  // Codes of a part may be 2^shift times what they should be, where that saves instructions; then all of them
  // are.
  static constexpr int shift(int part) { return 2 * part < kOfParts ? kLowShift : kHighShift; }
};

template <DType kOfType, class OfSums>
struct Format {
  static constexpr DType kType = kOfType;
  using Sums = OfSums;
  static constexpr int kStepsAtOnce = 1;  // between which codes come in any order
  static constexpr int kBias = 0;         // a power of two, or 0
  static constexpr float kUnit = 1.0f;
};

// ---- Codes of eight rows, four columns of each in a word: columns [4 four, 4 four + 4).

// Signed bytes, 256 times too large.
template <class To>
[[gnu::always_inline]] inline void put_bytes(To& to, int step, int four, __m256i w) {
  to.codes(step, 2 * four, _mm256_slli_epi16(w, 8));
  to.codes(step, 2 * four + 1, _mm256_and_si256(w, _mm256_set1_epi16(static_cast<int16_t>(0xff00))));
}
// Bytes that are not negative.
template <class To>
[[gnu::always_inline]] inline void put_unsigned(To& to, int step, int four, __m256i w) {
  to.codes(step, 2 * four, _mm256_and_si256(w, _mm256_set1_epi16(0xff)));
  to.codes(step, 2 * four + 1, _mm256_srli_epi16(w, 8));
}
// Bytes that hold two codes, of four columns each.
template <class To>
[[gnu::always_inline]] inline void put_nibbles(To& to, int step, int low, int high, __m256i w) {
  const __m256i mask = _mm256_set1_epi16(15);
  to.codes(step, 2 * low, _mm256_and_si256(w, mask));
  to.codes(step, 2 * low + 1, _mm256_and_si256(_mm256_srli_epi16(w, 8), mask));
  to.codes(step, 2 * high, _mm256_and_si256(_mm256_srli_epi16(w, 4), mask));
  to.codes(step, 2 * high + 1, _mm256_srli_epi16(w, 12));
}
// The same by way of a table of 16 signed bytes, twice; 256 times too large.
template <class To>
[[gnu::always_inline]] inline void put_looked_up(To& to, int step, int low, int high, __m256i w, __m256i table) {
  const __m256i mask = _mm256_set1_epi8(15);
  put_bytes(to, step, low, _mm256_shuffle_epi8(table, _mm256_and_si256(w, mask)));
  put_bytes(to, step, high, _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(w, 4), mask)));
}

// Twice the values of E2M1.
inline __m256i e2m1_table() {
  return twice(_mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12));
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

// Repacked codes are unsigned.
template <bool kUnsigned>
struct DecodeQ8_0 : Format<DType::kQ8_0, Shape<2, false, false, kUnsigned ? 0 : 8>> {
  static constexpr int kBias = kUnsigned ? 128 : 0;

  template <class Rows, class To>
  [[gnu::always_inline]] static void decode(const Rows& rows, int steps, To& to) {
    for (int s = 0; s < steps; ++s) {
      to.begin_step(s);
#pragma GCC unroll 2
      for (int b = 0; b < 2; ++b) {
        to.factor(s, b, rows.halves(s, b, 0));
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i) {
          const Words w = rows.words(s, b, 2 + 16 * i);
#pragma GCC unroll 4
          for (int j = 0; j < 4; ++j) {
            const int four = 8 * b + 4 * i + j;
            kUnsigned ? put_unsigned(to, s, four, w.of[j]) : put_bytes(to, s, four, w.of[j]);
          }
        }
      }
      to.end_step(s);
    }
  }
};

// Q4_0, Q4_1, Q5_0 and Q5_1: a half d, perhaps a half m, perhaps 32 fifth bits, and 16 bytes of codes whose
// low nibbles are the first 16 columns.
template <DType kOfType, bool kFifthBit, bool kMinimum>
struct DecodeLegacy : Format<kOfType, Shape<2, false, kMinimum>> {
  static constexpr int kBias = kMinimum ? 0 : kFifthBit ? 16 : 8;
  static constexpr int kBlock = repack_layout(kOfType).block_bytes();

  template <class Rows, class To>
  [[gnu::always_inline]] static void decode(const Rows& rows, int steps, To& to) {
    for (int s = 0; s < steps; ++s) {
      to.begin_step(s);
#pragma GCC unroll 2
      for (int b = 0; b < 2; ++b) {
        to.factor(s, b, rows.halves(s, b, 0));
        if constexpr (kMinimum) to.offset(s, b, rows.halves(s, b, 2));
        const Words w = rows.words(s, b, kBlock - 16);
        if constexpr (kFifthBit) {
          put_fifth(to, s, 8 * b, w, rows.word(s, b, kBlock - 20));
        } else {
#pragma GCC unroll 4
          for (int i = 0; i < 4; ++i) put_nibbles(to, s, 8 * b + i, 8 * b + 4 + i, w.of[i]);
        }
      }
      to.end_step(s);
    }
  }

 private:
  // Bit c of `bits` belongs to the code of column c.
  template <class To>
  [[gnu::always_inline]] static void put_fifth(To& to, int s, int first, const Words& w, __m256i bits) {
    const __m256i mask = _mm256_set1_epi8(15), fifth = _mm256_set1_epi8(16);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m256i one_each = _mm256_set1_epi32(i % 2 == 0 ? 0x08040201 : static_cast<int>(0x80402010));
      const auto with_fifth = [&](__m256i nibbles, int byte) __attribute__((always_inline)) {
        const int all = 0x01010101 * byte;
        const __m256i four = twice(_mm_setr_epi32(all, all + 0x04040404, all + 0x08080808, all + 0x0c0c0c0c));
        const __m256i set = _mm256_and_si256(_mm256_shuffle_epi8(bits, four), one_each);
        return _mm256_or_si256(_mm256_and_si256(nibbles, mask),
                               _mm256_and_si256(_mm256_cmpeq_epi8(set, one_each), fifth));
      };
      put_unsigned(to, s, first + i, with_fifth(w.of[i], i / 2));
      put_unsigned(to, s, first + 4 + i, with_fifth(_mm256_srli_epi16(w.of[i], 4), 2 + i / 2));
    }
  }
};

}  // namespace
}  // namespace quire::gemm
