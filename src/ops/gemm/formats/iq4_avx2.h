// IQ4_NL and IQ4_XS (quant/iq4.cpp) with AVX2, in the form that parts_avx2.h describes. Everything has internal
// linkage.
#pragma once

#include "ops/gemm/formats/parts_avx2.h"
#include "ops/gemm/sub_scales.h"
#include "quant/iq4.h"

namespace quire::gemm {
namespace {

// 32 elements, codes at `qs`.
inline void decode_iq4_codes(const std::byte* qs, float scale, float* to) {
  const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(quant::kIq4Values));
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(qs)), four = _mm_set1_epi8(15);
  widen16(_mm_shuffle_epi8(values, _mm_and_si128(bytes, four)), scale, to);
  widen16(_mm_shuffle_epi8(values, _mm_and_si128(_mm_srli_epi16(bytes, 4), four)), scale, to + 16);
}

inline void decode_iq4_nl(const std::byte* from, int64_t cols, float* to) {
  for (int64_t k = 0; k < cols; k += 32, from += 18, to += 32)
    decode_iq4_codes(from + 2, _mm_cvtss_f32(half_at(from)), to);
}

inline void decode_iq4_xs(const std::byte* from, int64_t cols, float* to) {
  for (int64_t k = 0; k < cols; k += 256, from += 136) {
    alignas(32) float scales[8];
    _mm256_store_ps(scales, scaled_bytes(iq4_xs_scales(from), 32, _mm256_broadcastss_ps(half_at(from))));
    for (int j = 0; j < 8; ++j, to += 32) decode_iq4_codes(from + 8 + 16 * j, scales[j], to);
  }
}

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

template <>
struct OnAvx2<DType::kIQ4_NL> {
  static constexpr quant::Decoder kRows = decode_iq4_nl;
  template <bool kRepacked>
  using Panel = DecodeIq4Nl;
};

template <>
struct OnAvx2<DType::kIQ4_XS> {
  static constexpr quant::Decoder kRows = decode_iq4_xs;
  template <bool kRepacked>
  using Panel = DecodeIq4Xs;
};

}  // namespace
}  // namespace quire::gemm
