// The integer core for ARM's dot products: 16 products of bytes in an instruction, that is 8 of a token's integers.
#include "ops/gemm/bytes_neon.h"
#include "ops/gemm/integer_avx2.h"

namespace quire::gemm {
namespace {

struct DotProducts : RowBytes {
  static constexpr int kHalves = 1;

  template <int kPairs, int kTokens>
  [[gnu::always_inline]] static void add(const Panel& panel, int s, int half, int pair,
                                         const TokenStep* const (&x)[kTokens], __m256i (&z)[kTokens][1]) {
    Sum sums[kTokens];
    for (int t = 0; t < kTokens; ++t) sums[t] = begin(z[t][0]);
#pragma GCC unroll 4
    for (int i = 0; i < kPairs / 4; ++i) {
      const int8_t* const codes = panel.codes[s][pair / 4 + i][half];
      const int8x16_t w[4] = {vld1q_s8(codes), vld1q_s8(codes + 16), vld1q_s8(codes + 32), vld1q_s8(codes + 48)};
#pragma GCC unroll 4
      for (int t = 0; t < kTokens; ++t) {
        const int8x16_t q = vld1q_s8(x[t][s].q[pair / 4 + i][0]);
        add_four<0>(sums[t], q, w[0], w[1]);
        add_four<1>(sums[t], q, w[2], w[3]);
      }
    }
    for (int t = 0; t < kTokens; ++t) z[t][0] = total(sums[t]);
  }
};

}  // namespace

const Core kIntegerDotProdCore = kWideIntegers<DotProducts>;

}  // namespace quire::gemm
