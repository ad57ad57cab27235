// Products of panels, or of rows as they are decoded, with tokens: integer sums of parts, then what becomes
// of them in float32. The order of operations is that of core_integer_avx512.cpp. Everything has internal
// linkage.
//
// Dot is what the integers are multiplied by: PairProducts (pairs_avx2.h) of codes of 16 bits, RowBytes (bytes_neon.h)
// of bytes.
#pragma once

#include <bit>

#include "ops/gemm/formats/parts_avx2.h"

namespace quire::gemm {
namespace {

constexpr int kMostTokens = 3;  // of a tile of 16 rows: their sums and accumulators fill the registers

template <class F>
constexpr int bias_shift() {
  static_assert((F::kBias & (F::kBias - 1)) == 0);
  return F::kBias == 0 || (kByteCodes && F::kBias == 128) ? 32 : std::countr_zero(static_cast<unsigned>(F::kBias));
}

// ---- A panel by a tile of tokens

// Minus the sum of a token's values in a part.
template <class Sums>
[[gnu::always_inline]] inline __m256 minus_value(const TokenStep& x, int part) {
  return _mm256_broadcast_ss(Sums::kParts == 4 ? x.minus_value_group + part : x.minus_value + part);
}

// The sums of a unit of 256 columns, acc, times its d, and offsets times its dmin, go to those of the units
// before. Rows from 8 half on.
template <class Sums, int kTokens, int kHalves>
[[gnu::always_inline]] inline void add_unit(const Panel& panel, int part, int steps, int half,
                                            const TokenStep* const (&x)[kTokens], const float* const* sums,
                                            __m256 (&acc)[kTokens][kHalves]) {
  const auto all = [](auto&& fn) {
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; ++t)
#pragma GCC unroll 2
      for (int h = 0; h < kHalves; ++h) fn(t, h);
  };
  all([&](int t, int h) {
    const __m256 before = _mm256_load_ps(sums[t] + 16 * part + 8 * (half + h));
    acc[t][h] = _mm256_fmadd_ps(_mm256_load_ps(panel.d + 8 * (half + h)), acc[t][h], before);
  });
  if constexpr (!Sums::kOffsets) return;
  __m256 offsets[kTokens][kHalves];
  all([&](int t, int h) { offsets[t][h] = _mm256_setzero_ps(); });
  for (int s = 0; s < steps; ++s)
    all([&](int t, int h) {
      const __m256 offset = _mm256_load_ps(panel.offsets[s][part] + 8 * (half + h));
      offsets[t][h] = _mm256_fmadd_ps(offset, minus_value<Sums>(x[t][s], part), offsets[t][h]);
    });
  all([&](int t, int h) {
    acc[t][h] = _mm256_fmadd_ps(_mm256_load_ps(panel.dmin + 8 * (half + h)), offsets[t][h], acc[t][h]);
  });
}

// Rows [8 half, 8 (half + Dot::kHalves)) of what multiply_panel does.
template <class Dot, class Sums, int kTokens>
[[gnu::always_inline]] inline void multiply_rows(const Panel& panel, int half, int part, int steps, __m128i bias_shift,
                                                 const TokenStep* const (&x)[kTokens], float* const* sums) {
  constexpr int kHalves = Dot::kHalves;
  const auto all = [](auto&& fn) {
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; ++t)
#pragma GCC unroll 2
      for (int h = 0; h < kHalves; ++h) fn(t, h);
  };
  const int block = part / (Sums::kParts / 2);
  const bool high = block == 1;
  __m256 acc[kTokens][kHalves];
  all([&](int t, int h) {
    acc[t][h] = Sums::kSuper ? _mm256_setzero_ps() : _mm256_load_ps(sums[t] + 16 * part + 8 * (half + h));
  });
  for (int s = 0; s < steps; ++s) {
    __m256i z[kTokens][kHalves];
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; ++t) {
      // What the codes' bias makes too much.
      const int32_t* const sum = Sums::kParts == 4 ? x[t][s].minus_sum : x[t][s].minus_sum_block;
      const __m256i too_much = _mm256_sll_epi32(_mm256_set1_epi32(sum[part]), bias_shift);
      for (int h = 0; h < kHalves; ++h) z[t][h] = too_much;
    }
    Dot::template add<Sums::kPairs>(panel, s, half, Sums::kPairs * part, x, z);
    __m256 factors[kHalves];
    for (int h = 0; h < kHalves; ++h) factors[h] = _mm256_load_ps(panel.factors[s][part] + 8 * (half + h));
    all([&](int t, int h) {
      const __m256 factor = _mm256_mul_ps(factors[h], _mm256_broadcast_ss(x[t][s].scale + block));
      const __m256i sum =
          high ? _mm256_srai_epi32(z[t][h], Sums::shift(Sums::kParts - 1)) : _mm256_srai_epi32(z[t][h], Sums::shift(0));
      acc[t][h] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), factor, acc[t][h]);
      if constexpr (Sums::kOffsets && !Sums::kSuper)
        acc[t][h] = _mm256_fnmadd_ps(_mm256_load_ps(panel.offsets[s][part] + 8 * (half + h)),
                                     minus_value<Sums>(x[t][s], part), acc[t][h]);
    });
  }
  if constexpr (Sums::kSuper) add_unit<Sums>(panel, part, steps, half, x, sums, acc);
  all([&](int t, int h) { _mm256_store_ps(sums[t] + 16 * part + 8 * (half + h), acc[t][h]); });
}

// sums[t][part] += 16 rows of a panel, `steps` steps, times token t.
template <class Dot, class Sums, int kTokens>
void multiply_panel(const Panel& panel, int steps, int shift_of_bias, const TokenStep* const* tokens,
                    float* const* sums) {
  const __m128i shift = _mm_cvtsi32_si128(shift_of_bias);
  const TokenStep* x[kTokens];
  for (int t = 0; t < kTokens; ++t) x[t] = tokens[t];
  for (int part = 0; part < Sums::kParts; ++part)
    for (int half = 0; half < 2; half += Dot::kHalves)
      multiply_rows<Dot, Sums>(panel, half, part, steps, shift, x, sums);
}

// ---- Eight rows by one token

// A sink of decoders that multiplies what it is given with a token at once: for one token a panel would cost
// more than it saves. Sums of eight rows, [parts].
template <class Dot, class F>
class RowSums {
 public:
  using Sums = typename F::Sums;
  RowSums(PrefetchStreams& prefetch, PrefetchPace& pace) : prefetch_(prefetch), pace_(pace) {}
  void next_chunk(const TokenStep* x) { x_ = x; }

  [[gnu::always_inline]] void begin_unit(__m256 d, __m256 dmin) {
    d_ = d, dmin_ = dmin;
    for (int i = 0; i < Sums::kParts; ++i) of_unit_[i] = offsets_[i] = _mm256_setzero_ps();
  }
  [[gnu::always_inline]] void begin_step(int s) {
    const int32_t* const sum = Sums::kParts == 4 ? x_[s].minus_sum : x_[s].minus_sum_block;
    for (int i = 0; i < Sums::kParts; ++i)
      z_[place(s, i)] =
          Dot::begin(bias_shift<F>() == 32 ? _mm256_setzero_si256()
                                           : _mm256_slli_epi32(_mm256_set1_epi32(sum[i]), bias_shift<F>()));
  }
  [[gnu::always_inline]] void factor(int s, int part, __m256 v) { factors_[place(s, part)] = v; }
  [[gnu::always_inline]] void offset(int s, int part, __m256 v) { offset_[place(s, part)] = v; }
  [[gnu::always_inline]] void codes(int s, int at, __m256i v) {
    Dot::codes(z_[place(s, at * (kByteCodes ? 2 : 1) / Sums::kPairs)], x_[s], at, v);
  }
  [[gnu::always_inline]] void end_step(int s) {
    for (int i = 0; i < Sums::kParts; ++i) {
      const int at = place(s, i), block = i / (Sums::kParts / 2);
      const __m256 sum = _mm256_cvtepi32_ps(_mm256_srai_epi32(Dot::total(z_[at]), Sums::shift(i)));
      const __m256 by = _mm256_mul_ps(factors_[at], _mm256_broadcast_ss(x_[s].scale + block));
      const float* const minus = Sums::kParts == 4 ? x_[s].minus_value_group : x_[s].minus_value;
      if constexpr (Sums::kSuper) {
        of_unit_[i] = _mm256_fmadd_ps(sum, by, of_unit_[i]);
        if constexpr (Sums::kOffsets)
          offsets_[i] = _mm256_fmadd_ps(offset_[at], _mm256_broadcast_ss(minus + i), offsets_[i]);
      } else {
        acc[i] = _mm256_fmadd_ps(sum, by, acc[i]);
        if constexpr (Sums::kOffsets) acc[i] = _mm256_fnmadd_ps(offset_[at], _mm256_broadcast_ss(minus + i), acc[i]);
      }
    }
    pace_.turn(prefetch_);
  }
  [[gnu::always_inline]] void end_unit() {
    for (int i = 0; i < Sums::kParts; ++i) {
      acc[i] = _mm256_fmadd_ps(d_, of_unit_[i], acc[i]);
      if constexpr (Sums::kOffsets) acc[i] = _mm256_fmadd_ps(dmin_, offsets_[i], acc[i]);
    }
  }

  __m256 acc[Sums::kParts];

 private:
  static constexpr int kPlaces = F::kStepsAtOnce * Sums::kParts;
  static constexpr int place(int s, int part) { return s % F::kStepsAtOnce * Sums::kParts + part; }

  PrefetchStreams& prefetch_;
  PrefetchPace& pace_;
  const TokenStep* x_ = nullptr;
  typename Dot::Sum z_[kPlaces];
  __m256 factors_[kPlaces], offset_[kPlaces];
  __m256 of_unit_[Sums::kParts], offsets_[Sums::kParts];
  __m256 d_, dmin_;
};

// sums[part][8 of 16 rows] += eight rows, `steps` whole steps, times a token. A step is a turn of what is
// prefetched.
template <class Dot, class F, class Rows>
void multiply_one(EightRows rows, int64_t steps, const TokenStep* x, PrefetchStreams& streams, PrefetchPace& pace,
                  float* sums) {
  PrefetchStreams prefetch = streams;
  PrefetchPace of_prefetch = pace;
  RowSums<Dot, F> of_rows(prefetch, of_prefetch);
  for (int i = 0; i < F::Sums::kParts; ++i) of_rows.acc[i] = _mm256_load_ps(sums + 16 * i);
  for (; steps > 0; steps -= kChunkSteps, x += kChunkSteps, rows = rows.at(Rows::kChunkBytes)) {
    of_rows.next_chunk(x);
    F::decode(Rows(rows), steps < kChunkSteps ? static_cast<int>(steps) : kChunkSteps, of_rows);
  }
  streams = prefetch;
  pace = of_prefetch;
  for (int i = 0; i < F::Sums::kParts; ++i) _mm256_store_ps(sums + 16 * i, of_rows.acc[i]);
}

}  // namespace
}  // namespace quire::gemm
