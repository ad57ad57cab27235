// The integer core for ARM's I8MM: two rows of eight codes meet eight columns of a token, its `high` and its `low`, in
// an instruction. One token alone takes dot products: rows need not be brought together in pairs for those.
#include "ops/gemm/bytes_neon.h"
#include "ops/gemm/integer_avx2.h"

namespace quire::gemm {
namespace {

struct MatrixProducts : RowBytes {
  static constexpr int kHalves = 1;

  template <int kPairs, int kTokens>
  [[gnu::always_inline]] static void add(const Panel& panel, int s, int half, int pair,
                                         const TokenStep* const (&x)[kTokens], __m256i (&z)[kTokens][1]) {
    int32x4_t sums[kTokens][4];  // [rows 0 1, 4 5, 2 3, 6 7][row][high, low]
    for (int t = 0; t < kTokens; ++t)
      for (int i = 0; i < 4; ++i) sums[t][i] = vdupq_n_s32(0);
#pragma GCC unroll 4
    for (int i = 0; i < kPairs / 4; ++i) {
      const int8_t* const codes = panel.codes[s][pair / 4 + i][half];
      const int8x16_t w[4] = {vld1q_s8(codes), vld1q_s8(codes + 16), vld1q_s8(codes + 32), vld1q_s8(codes + 48)};
#pragma GCC unroll 4
      for (int t = 0; t < kTokens; ++t) {
        const int8x16_t q = vld1q_s8(x[t][s].q[pair / 4 + i][0]);
#pragma GCC unroll 4
        for (int r = 0; r < 4; ++r) sums[t][r] = vmmlaq_s32(sums[t][r], w[r], q);
      }
    }
    const auto of_rows = [](int32x4_t first, int32x4_t second) {
      return joined(vuzp1q_s32(first, second), vuzp2q_s32(first, second));
    };
    for (int t = 0; t < kTokens; ++t) {
      z[t][0].lo = vaddq_s32(z[t][0].lo, of_rows(sums[t][0], sums[t][2]));
      z[t][0].hi = vaddq_s32(z[t][0].hi, of_rows(sums[t][1], sums[t][3]));
    }
  }
};

}  // namespace

const Core kIntegerI8mmCore = kWideIntegers<MatrixProducts>;

}  // namespace quire::gemm
