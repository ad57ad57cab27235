// Products of codes of 16 bits by tokens' integers, two columns at a time, for tile_avx2.h. Everything has internal
// linkage.
#pragma once

#include "ops/gemm/tile_avx2.h"

namespace quire::gemm {
namespace {

inline __m256i broadcast_two(const int16_t* q) {
  return _mm256_set1_epi32(load_as<int32_t>(reinterpret_cast<const std::byte*>(q)));
}

// By instructions Add::add(sum, codes, two), which add to each 32-bit sum the products of two codes and two integers.
template <class Add>
struct PairProducts {
  static constexpr int kHalves = 2;  // of 16 rows, that are multiplied beside each other

  // A sum of eight rows.
  using Sum = __m256i;
  static Sum begin(__m256i from) { return from; }
  static __m256i total(Sum sum) { return sum; }
  [[gnu::always_inline]] static void codes(Sum& sum, const TokenStep& x, int pair, __m256i v) {
    sum = Add::add(sum, v, broadcast_two(x.q + 2 * pair));
  }

  // z[t] += rows [8 half, ...) of a panel's step times token t, in columns [2 pair, 2 (pair + pairs)).
  template <int kPairs, int kTokens>
  [[gnu::always_inline]] static void add(const Panel& panel, int s, int, int pair, const TokenStep* const (&x)[kTokens],
                                         __m256i (&z)[kTokens][kHalves]) {
    const auto* const codes = reinterpret_cast<const __m256i*>(panel.codes[s][pair]);
    const int16_t* q[kTokens];
    for (int t = 0; t < kTokens; ++t) q[t] = x[t][s].q + 2 * pair;
    const auto add_pair = [&](int p) __attribute__((always_inline)) {
      const __m256i w[2] = {_mm256_load_si256(codes + 2 * p), _mm256_load_si256(codes + 2 * p + 1)};
#pragma GCC unroll 4
      for (int t = 0; t < kTokens; ++t) {
        const __m256i two = broadcast_two(q[t] + 2 * p);
        z[t][0] = Add::add(z[t][0], w[0], two);
        z[t][1] = Add::add(z[t][1], w[1], two);
      }
    };
    for (int p = 0; p < kPairs; p += 4) {  // by hand: GCC 12 does not unroll it
      add_pair(p);
      add_pair(p + 1);
      add_pair(p + 2);
      add_pair(p + 3);
    }
  }
};

}  // namespace
}  // namespace quire::gemm
