// Q8_0, Q4_0, Q4_1, Q5_0 and Q5_1 (quant/blocks32.cpp) with AVX2, in the form that parts_avx2.h describes. Everything
// has internal linkage.
#pragma once

#include "ops/gemm/formats/parts_avx2.h"

namespace quire::gemm {
namespace {

inline void decode_q8_0(const std::byte* from, int64_t cols, float* to) {
  for (int64_t k = 0; k < cols; k += 32, from += 34, to += 32) widen32(load32(from + 2), half_of(from), to);
}

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
            kUnsigned ? put_unsigned<kBias>(to, s, four, w.of[j]) : put_bytes(to, s, four, w.of[j]);
          }
        }
      }
      to.end_step(s);
    }
  }
};

template <>
struct OnAvx2<DType::kQ8_0> {
  static constexpr quant::Decoder kRows = decode_q8_0;
  template <bool kRepacked>
  using Panel = DecodeQ8_0<kRepacked>;
};

// Q4_0, Q4_1, Q5_0 and Q5_1: a half d, perhaps a half m, perhaps 32 fifth bits, 16 bytes of codes.
template <bool kFifthBit, bool kMinimum>
inline void decode_legacy(const std::byte* from, int64_t cols, float* to) {
  constexpr int64_t kCodes = 2 + (kMinimum ? 2 : 0) + (kFifthBit ? 4 : 0);
  const __m256i by_byte = _mm256_setr_epi64x(0, 0x0101'0101'0101'0101, 0x0202'0202'0202'0202, 0x0303'0303'0303'0303);
  const __m256i one_each = _mm256_set1_epi64x(static_cast<int64_t>(0x8040'2010'0804'0201));
  for (int64_t k = 0; k < cols; k += 32, from += kCodes + 16, to += 32) {
    __m256i q = nibbles(load16(from + kCodes));
    if constexpr (kFifthBit) {
      int32_t bits;
      std::memcpy(&bits, from + kCodes - 4, 4);
      q = _mm256_or_si256(q, fifth(_mm256_shuffle_epi8(_mm256_set1_epi32(bits), by_byte), one_each));
    }
    if constexpr (kMinimum)
      widen32(q, half_of(from), -half_of(from + 2), to);
    else
      widen32(_mm256_sub_epi8(q, _mm256_set1_epi8(kFifthBit ? 16 : 8)), half_of(from), to);
  }
}

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

template <>
struct OnAvx2<DType::kQ4_0> {
  static constexpr quant::Decoder kRows = decode_legacy<false, false>;
  template <bool kRepacked>
  using Panel = DecodeLegacy<DType::kQ4_0, false, false>;
};

template <>
struct OnAvx2<DType::kQ4_1> {
  static constexpr quant::Decoder kRows = decode_legacy<false, true>;
  template <bool kRepacked>
  using Panel = DecodeLegacy<DType::kQ4_1, false, true>;
};

template <>
struct OnAvx2<DType::kQ5_0> {
  static constexpr quant::Decoder kRows = decode_legacy<true, false>;
  template <bool kRepacked>
  using Panel = DecodeLegacy<DType::kQ5_0, true, false>;
};

template <>
struct OnAvx2<DType::kQ5_1> {
  static constexpr quant::Decoder kRows = decode_legacy<true, true>;
  template <bool kRepacked>
  using Panel = DecodeLegacy<DType::kQ5_1, true, true>;
};

}  // namespace
}  // namespace quire::gemm
