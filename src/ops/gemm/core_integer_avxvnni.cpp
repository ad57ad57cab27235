// The integer core for AVX-VNNI: products and sums in one instruction.
#include "ops/gemm/integer_avx2.h"
#include "ops/gemm/pairs_avx2.h"

namespace quire::gemm {
namespace {

struct MultiplyAdd {
  static __m256i add(__m256i sum, __m256i codes, __m256i token) { return _mm256_dpwssd_avx_epi32(sum, codes, token); }
};

}  // namespace

const Core kIntegerAvxVnniCore = kWideIntegers<PairProducts<MultiplyAdd>>;

}  // namespace quire::gemm
