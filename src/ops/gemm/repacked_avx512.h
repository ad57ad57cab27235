// What the integer core reads of repacked weights (repack.h): a lane is a row. The same integers, factors and
// order of adding as in integer_avx512.h, so the same bits; but sums need no adding up across lanes, codes
// and scales no collecting. Needs AVX-512 with VBMI and VNNI; everything has internal linkage.
//
// A format reads a unit, an array of vectors of words. Of step s, group g, it gives
//   codes(unit, s, g, j)  four unsigned codes of each row, which meet the token's word token_word(g, j);
//   factor, offset        of every row; `Head` is what is read once for a unit.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cstdint>

#include "ops/gemm/integer_avx512.h"
#include "ops/gemm/repack.h"
#include "ops/gemm/streams.h"

namespace quire::gemm {
namespace {

// sum += codes of 16 rows times four bytes of a token. Written out because GCC 12 would load the broadcast by
// an instruction of its own, a quarter of all of them.
inline __m512i add_products(__m512i sum, __m512i codes, const int8_t* four) {
  using Word __attribute__((may_alias)) = int32_t;
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(codes), "m"(*reinterpret_cast<const Word*>(four)));
  return sum;
}
inline __m512i load_words(const std::byte* unit, int word) {
  return _mm512_load_si512(unit + word * 64);
}
// Words' low halves, then their high halves.
inline __m512i split_halves(__m512i words) {
  static constexpr Bytes kOrder([](int i) { return i % 2 == 0 ? i / 2 % 16 * 2 + i / 32 : 0; });
  return _mm512_permutexvar_epi16(load_table(kOrder.of), words);
}
inline __m512 low_floats(__m512i halves) {
  return _mm512_cvtph_ps(_mm512_castsi512_si256(halves));
}
inline __m512 high_floats(__m512i halves) {
  return _mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1));
}
inline __m512i nibble(__m512i x, bool high) {
  return low_nibble(high ? _mm512_srli_epi16(x, 4) : x);
}
// Bits of every byte from bit `from` on, from bit `to` on, with others beside them.
inline __m512i bits_to(__m512i x, int from, int to) {
  if (from < to) return _mm512_slli_epi16(x, static_cast<unsigned>(to - from));
  if (from > to) return _mm512_srli_epi16(x, static_cast<unsigned>(from - to));
  return x;
}
// Byte i of every word, as a float.
inline __m512 byte_as_float(__m512i words, int i) {
  if (i > 0) words = _mm512_srli_epi32(words, static_cast<unsigned>(8 * i));
  if (i < 3) words = _mm512_and_si512(words, _mm512_set1_epi32(255));
  return _mm512_cvtepi32_ps(words);
}
inline __m512 signed_byte_as_float(__m512i words, int i) {
  if (i < 3) words = _mm512_slli_epi32(words, static_cast<unsigned>(24 - 8 * i));
  return _mm512_cvtepi32_ps(_mm512_srai_epi32(words, 24));
}
inline __m512 nibble_as_float(__m512i words, int i) {
  if (i > 0) words = _mm512_srli_epi32(words, static_cast<unsigned>(4 * i));
  if (i < 7) words = _mm512_and_si512(words, _mm512_set1_epi32(15));
  return _mm512_cvtepi32_ps(words);
}

struct PlainLanes {
  // The codes of a group are 2^shift times what they should be: bits where they lie.
  static constexpr int shift(int, int) { return 0; }
  static constexpr int token_word(int g, int j) { return 4 * g + j; }
};

// Two blocks of 32 a step, whose first 16 columns are the low nibbles.
struct NibbleLanes : PlainLanes {
  static constexpr int token_word(int g, int j) { return 8 * (g / 2) + 2 * (g % 2) + j / 2 * 4 + j % 2; }
  // The word among a block's four that holds codes(g, j), low nibbles for j < 2.
  static constexpr int word(int g, int j) { return 2 * (g % 2) + j % 2; }
};

// What a sum of codes that are 2^shift times too large begins at, as 8 high + low: minus the bias times the
// token's sum.
struct Start {
  __m512i high, low;
};
template <int kBias>
Start start(int32_t minus_twice, int shift) {
  static_assert((kBias & (kBias - 1)) == 0 && kBias != 1);
  const __m512i none = _mm512_setzero_si512();
  if constexpr (kBias == 0) return {none, none};
  const __m512i v = _mm512_set1_epi32(minus_twice);
  const int log2 = std::countr_zero(static_cast<unsigned>(kBias)) + shift;
  if (log2 < 3) return {none, _mm512_slli_epi32(v, static_cast<unsigned>(log2 - 1))};
  if (log2 == 3) return {_mm512_srai_epi32(v, 1), none};
  return {log2 == 4 ? v : _mm512_slli_epi32(v, static_cast<unsigned>(log2 - 4)), none};
}

// A step's sums have accumulators of their own where they have factors of their own.
template <class Integer>
constexpr int kParts = Integer::kBlocks ? 2 : 4;

// acc[t][i] += part i of step s of a unit times token t; with kSuper without the unit's d, and offsets[t][i]
// += what its dmin is to be multiplied by.
template <class Format, int kTokens, int kOf>
inline __attribute__((always_inline)) void add_step(const std::byte* unit, const typename Format::Head& head, int s,
                                                    const TokenStep* const (&x)[kTokens], __m512 (&acc)[kTokens][kOf],
                                                    __m512 (&offsets)[kTokens][kOf]) {
  using Integer = typename Format::Integer;
  constexpr int kGroups = 4 / kOf;  // of a part
#pragma GCC unroll 4
  for (int i = 0; i < kOf; ++i) {
    const int first = kGroups * i, block = 2 * i / kOf;
    __m512i high[kTokens], low[kTokens];
    const int shift = Format::shift(s, first);
    for (int t = 0; t < kTokens; ++t) {
      const Start begin =
          start<Integer::kBias>(Integer::kBlocks ? x[t][s].minus_twice_block[i] : x[t][s].minus_twice[i], shift);
      high[t] = begin.high;
      low[t] = begin.low;
    }
#pragma GCC unroll 8
    for (int j = 0; j < 4 * kGroups; ++j) {
      const __m512i codes = Format::codes(unit, s, first + j / 4, j % 4);
      const int at = 4 * Format::token_word(first + j / 4, j % 4);
      for (int t = 0; t < kTokens; ++t) {
        high[t] = add_products(high[t], codes, x[t][s].high + at);
        low[t] = add_products(low[t], codes, x[t][s].low + at);
      }
    }
    const __m512 factor = Format::factor(head, s, first);
    for (int t = 0; t < kTokens; ++t) {
      const __m512i both = _mm512_add_epi32(_mm512_slli_epi32(high[t], 3), low[t]);
      const __m512i sum = shift > 0 ? _mm512_srai_epi32(both, static_cast<unsigned>(shift)) : both;
      acc[t][i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(factor, _mm512_set1_ps(x[t][s].scale[block])),
                                  acc[t][i]);
      if constexpr (Integer::kOffsets) {
        const __m512 offset = Format::offset(head, s, first),
                     value = _mm512_set1_ps(Integer::kBlocks ? x[t][s].minus_value[i] : x[t][s].minus_value_group[i]);
        if constexpr (Integer::kSuper)
          offsets[t][i] = _mm512_fmadd_ps(offset, value, offsets[t][i]);
        else
          acc[t][i] = _mm512_fnmadd_ps(offset, value, acc[t][i]);
      }
    }
  }
}

template <int kTokens, int kOf>
inline void clear(__m512 (&v)[kTokens][kOf]) {
  for (auto& of_token : v)
    for (__m512& x : of_token) x = _mm512_setzero_ps();
}

// acc += a unit, as far as there are `steps`.
template <class Format, int kTokens, int kOf>
inline __attribute__((always_inline)) void add_lanes(const std::byte* unit, int64_t steps,
                                                     const TokenStep* const (&x)[kTokens],
                                                     __m512 (&acc)[kTokens][kOf]) {
  using Integer = typename Format::Integer;
  constexpr int kSteps = repack_layout(Format::kType).columns / kStepColumns;
  const typename Format::Head head(unit);
  __m512 of_unit[kTokens][kOf], offsets[kTokens][kOf];
  clear(of_unit);
  clear(offsets);
#pragma GCC unroll 4
  for (int s = 0; s < kSteps; ++s)
    if (kSteps != 2 || s < steps) add_step<Format>(unit, head, s, x, Integer::kSuper ? of_unit : acc, offsets);
  if constexpr (Integer::kSuper)
    for (int t = 0; t < kTokens; ++t)
      for (int i = 0; i < kOf; ++i) {
        acc[t][i] = _mm512_fmadd_ps(head.d, of_unit[t][i], acc[t][i]);
        if constexpr (Integer::kOffsets) acc[t][i] = _mm512_fmadd_ps(head.dmin, offsets[t][i], acc[t][i]);
      }
}

// sums[t] = a group of 16 rows times token t, over `steps` steps of K.
template <class Format, int kTokens>
void multiply_lanes(const std::byte* group, int64_t steps, const TokenStep* const* tokens, PrefetchStreams* streams,
                    __m512* sums) {
  using Integer = typename Format::Integer;
  constexpr RepackLayout kLayout = repack_layout(Format::kType);
  constexpr int kSteps = kLayout.columns / kStepColumns;
  PrefetchStreams prefetch = streams == nullptr ? PrefetchStreams{} : *streams;
  const int64_t share = prefetch.share((steps + kSteps - 1) / kSteps);
  const TokenStep* x[kTokens];
  for (int t = 0; t < kTokens; ++t) x[t] = tokens[t];
  __m512 acc[kTokens][kParts<Integer>];
  clear(acc);
  for (; steps > 0; steps -= kSteps, group += kLayout.words() * 64) {
    add_lanes<Format>(group, steps, x, acc);
    prefetch.issue(share);
    for (const TokenStep*& of_token : x) of_token += kSteps;
  }
  if (streams != nullptr) *streams = prefetch;
  for (int t = 0; t < kTokens; ++t) {
    __m512 sum = _mm512_add_ps(acc[t][0], acc[t][1]);
    if constexpr (!Integer::kBlocks)
      sum = _mm512_add_ps(_mm512_add_ps(acc[t][0], acc[t][2]), _mm512_add_ps(acc[t][1], acc[t][3]));
    sums[t] = _mm512_mul_ps(sum, _mm512_set1_ps(Integer::kUnit));
  }
}

}  // namespace
}  // namespace quire::gemm
