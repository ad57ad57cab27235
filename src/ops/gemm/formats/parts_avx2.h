// What AVX2's decoders of formats are made of. A family of formats has a file of them (blocks32_avx2.h and so on), and
// a format up to two decoders, which OnAvx2 of its type names. Everything has internal linkage.
//
// - kRows, a row to float32: exactly what quant::decode_row gives, but for the sign of a zero. Products of a scale and
//   a code are exact in float32, so at most one operation rounds.
// - Panel, eight rows to a panel (panel_avx2.h), of formats that the integer cores take: a struct that says what
//   weights are made of, and `decode`, which fills eight rows of a panel from `steps` steps of 64 columns. A weight is
//   kUnit * factor * (code - bias) (+ offset), or with kSuper d * factor * (code - bias) (- dmin * offset), where d and
//   dmin are those of 256 columns. The integers are those of AVX-512 (integer_avx512.h). Where codes are bytes
//   (kByteCodes) they go four columns at a time, as they are, and no sum is shifted.
#pragma once

#include "core/m256.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "ops/gemm/panel_avx2.h"
#include "quant/format_table.h"

namespace quire::gemm {
namespace {

template <DType kType>
struct OnAvx2;

// ---- Rows

inline __m128 half_at(const std::byte* at) {
  uint16_t h;
  std::memcpy(&h, at, 2);
  return _mm_cvtph_ps(_mm_cvtsi32_si128(h));
}
inline float half_of(const std::byte* at) {
  return _mm_cvtss_f32(half_at(at));
}
inline __m128i load16(const std::byte* at) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
}
inline __m256i load32(const std::byte* at) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
}

// 16 signed bytes times `scale` less `minus`.
inline void widen16(__m128i bytes, float scale, float minus, float* to) {
  const __m256 s = _mm256_set1_ps(scale), m = _mm256_set1_ps(minus);
  for (int i = 0; i < 16; i += 8, bytes = _mm_unpackhi_epi64(bytes, bytes))
    _mm256_storeu_ps(to + i, _mm256_fmsub_ps(s, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)), m));
}
inline void widen16(__m128i bytes, float scale, float* to) {
  const __m256 s = _mm256_set1_ps(scale);
  for (int i = 0; i < 16; i += 8, bytes = _mm_unpackhi_epi64(bytes, bytes))
    _mm256_storeu_ps(to + i, _mm256_mul_ps(s, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes))));
}

// The same for 32.
inline void widen32(__m256i bytes, float scale, float minus, float* to) {
  widen16(_mm256_castsi256_si128(bytes), scale, minus, to);
  widen16(_mm256_extracti128_si256(bytes, 1), scale, minus, to + 16);
}
inline void widen32(__m256i bytes, float scale, float* to) {
  widen16(_mm256_castsi256_si128(bytes), scale, to);
  widen16(_mm256_extracti128_si256(bytes, 1), scale, to + 16);
}

// d times each of eight bytes less `bias`.
inline __m256 scaled_bytes(uint64_t bytes, int bias, __m256 d) {
  const __m256i wide = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<long long>(bytes)));
  return _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_sub_epi32(wide, _mm256_set1_epi32(bias))));
}

// Two bits of 32 bytes, from bit 2 g on: the codes of 32 elements.
inline __m256i crumbs(__m256i bytes, int g) {
  return _mm256_and_si256(_mm256_srl_epi16(bytes, _mm_cvtsi32_si128(2 * g)), _mm256_set1_epi8(3));
}

// The low nibbles of 16 bytes, then the high ones.
inline __m256i nibbles(__m128i bytes) {
  return _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(bytes, 4), bytes), _mm256_set1_epi8(15));
}
// The low or the high nibbles of 32 bytes.
inline __m256i nibbles(__m256i bytes, bool high) {
  return _mm256_and_si256(high ? _mm256_srli_epi16(bytes, 4) : bytes, _mm256_set1_epi8(15));
}
// 16 in the bytes that have any bit of `bit`.
inline __m256i fifth(__m256i bytes, __m256i bit) {
  const __m256i none = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), _mm256_setzero_si256());
  return _mm256_andnot_si256(none, _mm256_set1_epi8(16));
}

// ---- Panels

// How sums of a format become floats.
template <int kOfParts, bool kOfSuper, bool kWithOffsets, int kLowShift = 0, int kHighShift = kLowShift>
struct Shape {
  static constexpr int kParts = kOfParts;         // of a step: 2 of 32 columns or 4 of 16
  static constexpr bool kSuper = kOfSuper;        // whether 256 columns have a d (and a dmin) beside their factors
  static constexpr bool kOffsets = kWithOffsets;  // whether a weight is a product plus an offset
  static constexpr int kPairs = 32 / kOfParts;    // of columns in a part
  // Codes of 16 bits of a part may be 2^shift times what they should be, where that saves instructions; then all of
  // them are.
  static constexpr int shift(int part) { return kByteCodes ? 0 : 2 * part < kOfParts ? kLowShift : kHighShift; }
};

template <DType kOfType, class OfSums>
struct Format {
  static constexpr DType kType = kOfType;
  using Sums = OfSums;
  static constexpr int kStepsAtOnce = 1;  // between which codes come in any order
  static constexpr int kBias = 0;         // a power of two, or 0; 128 is taken off bytes as they are put
  static constexpr float kUnit = 1.0f;
};

// ---- Codes of eight rows, four columns of each in a word: columns [4 four, 4 four + 4).

// Signed bytes, 256 times too large.
template <class To>
[[gnu::always_inline]] inline void put_bytes(To& to, int step, int four, __m256i w) {
  if constexpr (kByteCodes) {
    to.codes(step, four, w);
  } else {
    to.codes(step, 2 * four, _mm256_slli_epi16(w, 8));
    to.codes(step, 2 * four + 1, _mm256_and_si256(w, _mm256_set1_epi16(static_cast<int16_t>(0xff00))));
  }
}
// Bytes that are not negative; up to 255 in formats whose bias is 128.
template <int kBias = 0, class To>
[[gnu::always_inline]] inline void put_unsigned(To& to, int step, int four, __m256i w) {
  if constexpr (kByteCodes) {
    to.codes(step, four, kBias == 128 ? _mm256_xor_si256(w, _mm256_set1_epi8(static_cast<char>(0x80))) : w);
  } else {
    to.codes(step, 2 * four, _mm256_and_si256(w, _mm256_set1_epi16(0xff)));
    to.codes(step, 2 * four + 1, _mm256_srli_epi16(w, 8));
  }
}
// Bytes that hold two codes, of four columns each.
template <class To>
[[gnu::always_inline]] inline void put_nibbles(To& to, int step, int low, int high, __m256i w) {
  if constexpr (kByteCodes) {
    const __m256i mask = _mm256_set1_epi8(15);
    to.codes(step, low, _mm256_and_si256(w, mask));
    to.codes(step, high, _mm256_and_si256(_mm256_srli_epi16(w, 4), mask));
  } else {
    const __m256i mask = _mm256_set1_epi16(15);
    to.codes(step, 2 * low, _mm256_and_si256(w, mask));
    to.codes(step, 2 * low + 1, _mm256_and_si256(_mm256_srli_epi16(w, 8), mask));
    to.codes(step, 2 * high, _mm256_and_si256(_mm256_srli_epi16(w, 4), mask));
    to.codes(step, 2 * high + 1, _mm256_srli_epi16(w, 12));
  }
}
// The same by way of a table of 16 signed bytes, twice; 256 times too large.
template <class To>
[[gnu::always_inline]] inline void put_looked_up(To& to, int step, int low, int high, __m256i w, __m256i table) {
  const __m256i mask = _mm256_set1_epi8(15);
  put_bytes(to, step, low, _mm256_shuffle_epi8(table, _mm256_and_si256(w, mask)));
  put_bytes(to, step, high, _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(w, 4), mask)));
}

}  // namespace
}  // namespace quire::gemm
