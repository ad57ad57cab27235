// Products of bytes with ARM's instructions, for the integer core for 256-bit vectors (tile_avx2.h): sums of codes
// times `high` and times `low` of a token's integers (TokenStep) are kept apart, and added at the end. Everything has
// internal linkage.
#pragma once

#include "ops/gemm/tile_avx2.h"

namespace quire::gemm {
namespace {

// Eight rows' sums, of rows 0 to 3 and 4 to 7.
struct HighAndLow {
  int32x4_t high[2], low[2];
};

inline int32x4_t joined(int32x4_t high, int32x4_t low) {
  return vaddq_s32(vshlq_n_s32(high, 3), low);
}

// By dot products: a lane is a row, whose four columns meet four of the token.
struct RowBytes {
  using Sum = HighAndLow;
  static Sum begin(__m256i from) { return {{vdupq_n_s32(0), vdupq_n_s32(0)}, {from.lo, from.hi}}; }
  static __m256i total(const Sum& s) { return {joined(s.high[0], s.low[0]), joined(s.high[1], s.low[1])}; }

  // kFour: 0 or 1, columns [4 kFour, ...) of the eight whose integers are `q`.
  template <int kFour>
  [[gnu::always_inline]] static void add_four(Sum& s, int8x16_t q, int8x16_t lo, int8x16_t hi) {
    s.high[0] = vdotq_laneq_s32(s.high[0], lo, q, kFour);
    s.high[1] = vdotq_laneq_s32(s.high[1], hi, q, kFour);
    s.low[0] = vdotq_laneq_s32(s.low[0], lo, q, kFour + 2);
    s.low[1] = vdotq_laneq_s32(s.low[1], hi, q, kFour + 2);
  }
  [[gnu::always_inline]] static void codes(Sum& s, const TokenStep& x, int four, __m256i v) {
    const int8x16_t q = vld1q_s8(x.q[four / 2][0]);
    const int8x16_t lo = vreinterpretq_s8_s32(v.lo), hi = vreinterpretq_s8_s32(v.hi);
    four % 2 == 0 ? add_four<0>(s, q, lo, hi) : add_four<1>(s, q, lo, hi);
  }
};

}  // namespace
}  // namespace quire::gemm
