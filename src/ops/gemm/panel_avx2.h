// What the integer core for 256-bit vectors (integer_avx2.h) multiplies: tokens as integers of 16 bits, and
// panels of 16 weight rows decoded to codes of 16 bits with their factors. Everything has internal linkage.
//
// ARM's instructions for products of bytes want bytes: a token's integer is then 8 * high + low, high from -127 to 127
// and low from -4 to 3, and codes are signed bytes. Products are as exact.
//
// The integers of a token, the groups in which they are summed, and every float operation on the sums are
// those of the integer core for AVX-512 (core_integer_avx512.cpp): sums of integers are exact in any order,
// so products have the same bits on both.
#pragma once

#include "core/m256.h"

#include <cstdint>
#include <type_traits>

#include "ops/gemm/rows_avx2.h"
#include "ops/gemm/streams.h"

namespace quire::gemm {
namespace {

#ifdef __ARM_FEATURE_DOTPROD
constexpr bool kByteCodes = true;
#else
constexpr bool kByteCodes = false;
#endif

// 64 columns of a token: value = scale[column / 32] * q, largest magnitude 1016. Of every four columns q
// holds 0, 2, 1 and 3: 16-bit halves of a row's 32-bit word hold the codes of columns 0 and 2, or 1 and 3,
// where they lie. As bytes: of every eight columns, in order, `high` and then `low`.
struct alignas(64) TokenStep {
  std::conditional_t<kByteCodes, int8_t[8][2][8], int16_t[64]> q;
  int32_t minus_sum[4];        // minus the sum of the integers of 16 columns
  int32_t minus_sum_block[2];  // of 32
  float minus_value[2];        // minus the sum of the values of 32
  float minus_value_group[4];  // of 16
  float scale[2];
};

#ifdef __ARM_FEATURE_MATMUL_INT8
constexpr bool kRowPairs = true;
#else
constexpr bool kRowPairs = false;
#endif

constexpr float kLargest = 1016.0f;     // what the largest of 32 becomes
constexpr float kSmallest = 0x1p-116f;  // 32 columns below are zeros: their reciprocal would overflow

inline int32_t sum_of(__m256i v) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

// The largest magnitude of 32 floats as bits, which are ordered like the numbers, NaN on top.
inline int32_t largest_magnitude(const __m256 (&v)[4]) {
  const __m256i sign = _mm256_set1_epi32(0x7fffffff);
  const auto magnitude = [&](int i) { return _mm256_and_si256(_mm256_castps_si256(v[i]), sign); };
  const __m256i m =
      _mm256_max_epi32(_mm256_max_epi32(magnitude(0), magnitude(1)), _mm256_max_epi32(magnitude(2), magnitude(3)));
  __m128i s = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
  s = _mm_max_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

// 16 integers go to group `of` of 16 columns. Two vectors of eight 32-bit numbers.
inline void store_integers(__m256i a, __m256i b, TokenStep& to, int of) {
  const auto in_order = [](__m256i first, __m256i second) {
    return _mm256_permute4x64_epi64(_mm256_packs_epi32(first, second), 0xd8);
  };
  if constexpr (kByteCodes) {
    const auto high_of = [](__m256i v) { return _mm256_srai_epi32(_mm256_add_epi32(v, _mm256_set1_epi32(4)), 3); };
    const auto low_of = [](__m256i v, __m256i high) { return _mm256_sub_epi32(v, _mm256_slli_epi32(high, 3)); };
    const __m256i high[2] = {high_of(a), high_of(b)};
    const __m256i both =
        _mm256_packs_epi16(in_order(high[0], high[1]), in_order(low_of(a, high[0]), low_of(b, high[1])));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(&to.q[2 * of]), both);
  } else {
    const __m256i ordered = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(in_order(a, b), 0xd8), 0xd8);
    _mm256_store_si256(reinterpret_cast<__m256i*>(&to.q[16 * of]), ordered);
  }
}

// 32 columns of a step, half 0 or 1. If one is not finite, the scale is NaN.
inline void quantise(const __m256 (&v)[4], TokenStep& to, int half) {
  const int32_t largest = largest_magnitude(v);
  const float m = __builtin_bit_cast(float, largest);
  const bool finite = largest < 0x7f800000, kept = finite && m >= kSmallest;
  const __m256 reciprocal = _mm256_set1_ps(kLargest / (kept ? m : 1.0f));
  const float scale = !finite ? __builtin_nanf("") : kept ? m / kLargest : 0.0f;
  int32_t all = 0;
  for (int g = 0; g < 2; ++g) {
    __m256i q[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    if (kept)
      for (int i = 0; i < 2; ++i) q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[2 * g + i], reciprocal));
    store_integers(q[0], q[1], to, 2 * half + g);
    const int32_t sum = sum_of(_mm256_add_epi32(q[0], q[1]));
    to.minus_sum[2 * half + g] = -sum;
    to.minus_value_group[2 * half + g] = -static_cast<float>(sum) * scale;
    all += sum;
  }
  to.scale[half] = scale;
  to.minus_sum_block[half] = -all;
  to.minus_value[half] = -static_cast<float>(all) * scale;
}

// ---- Where decoders put eight rows

// Up to 256 columns of 16 rows. What has a factor of its own within a step, two blocks of 32 columns or four
// groups of 16, is a part.
struct alignas(64) Panel {
  // [step][pair of columns, in the order of TokenStep::q][rows / 8][row][2]. As bytes [step][eight columns][rows / 8]
  // [four columns][row][4], or pairs of rows with eight columns each where kRowPairs.
  std::conditional_t<kByteCodes, int8_t[kChunkSteps][8][2][64], int16_t[kChunkSteps][32][2][16]> codes;
  float factors[kChunkSteps][4][16];  // [step][part][row]
  float offsets[kChunkSteps][4][16];
  float d[16], dmin[16];
};

// What a decoder gives of eight rows goes to a sink, step by step: begin_step, factors, codes and offsets of
// parts in any order, end_step. Formats with a d for 256 columns call begin_unit before the first step and
// end_unit after the last. This one fills half a panel.
class PanelHalf {
 public:
  PanelHalf(Panel& panel, int half, PrefetchStreams& prefetch, PrefetchPace& pace)
      : panel_(panel), prefetch_(prefetch), pace_(pace), half_(half) {}
  [[gnu::always_inline]] void begin_unit(__m256 d, __m256 dmin) {
    _mm256_store_ps(panel_.d + 8 * half_, d);
    _mm256_store_ps(panel_.dmin + 8 * half_, dmin);
  }
  [[gnu::always_inline]] void begin_step(int) {}
  [[gnu::always_inline]] void factor(int step, int part, __m256 v) {
    _mm256_store_ps(panel_.factors[step][part] + 8 * half_, v);
  }
  [[gnu::always_inline]] void offset(int step, int part, __m256 v) {
    _mm256_store_ps(panel_.offsets[step][part] + 8 * half_, v);
  }
  // Of a pair of columns, in the order of TokenStep::q; as bytes, of four columns, of which those of [0, 4) come before
  // those of [4, 8).
  [[gnu::always_inline]] void codes(int step, int at, __m256i v) {
    if constexpr (!kByteCodes) return _mm256_store_si256(reinterpret_cast<__m256i*>(panel_.codes[step][at][half_]), v);
    auto* const to = reinterpret_cast<__m256i*>(panel_.codes[step][at / 2][half_]);
    __m256i& first = first_[step % 2][at / 2];
    if constexpr (!kRowPairs) {
      _mm256_store_si256(to + at % 2, v);
    } else if (at % 2 == 0) {
      first = v;
    } else {  // rows 0, 1, 4, 5 and 2, 3, 6, 7
      _mm256_store_si256(to, _mm256_unpacklo_epi32(first, v));
      _mm256_store_si256(to + 1, _mm256_unpackhi_epi32(first, v));
    }
  }
  [[gnu::always_inline]] void end_step(int) { pace_.turn(prefetch_); }
  [[gnu::always_inline]] void end_unit() {}

 private:
  Panel& panel_;
  PrefetchStreams& prefetch_;
  PrefetchPace& pace_;  // a step is a turn
  int half_;
  __m256i first_[2][8];  // of columns whose other four have not come, of up to two steps at once
};

}  // namespace
}  // namespace quire::gemm
