// The integer core for AVX2: 16 products of 16 bits in an instruction, and their sums in another.
#include "ops/gemm/integer_avx2.h"
#include "ops/gemm/pairs_avx2.h"

namespace quire::gemm {
namespace {

struct MultiplyAndAdd {
  static __m256i add(__m256i sum, __m256i codes, __m256i token) {
    const __m256i products = _mm256_madd_epi16(codes, token);
#ifdef __x86_64__
    // Written out because GCC 12 would add products of several columns among themselves first, and keep them in memory
    // meanwhile.
    asm("vpaddd %1, %0, %0" : "+x"(sum) : "x"(products));
    return sum;
#else
    return _mm256_add_epi32(sum, products);
#endif
  }
};

}  // namespace

const Core kIntegerBaseCore = kWideIntegers<PairProducts<MultiplyAndAdd>>;

}  // namespace quire::gemm
