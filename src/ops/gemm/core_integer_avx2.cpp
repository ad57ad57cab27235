// The integer core for AVX2: 16 products of 16 bits in an instruction, and their sums in another.
#include "ops/gemm/integer_avx2.h"

namespace quire::gemm {
namespace {

struct MultiplyAndAdd {
  // The addition is written out because GCC 12 would add products of several columns among themselves first,
  // and keep them in memory meanwhile.
  static __m256i add(__m256i sum, __m256i codes, __m256i token) {
    asm("vpaddd %1, %0, %0" : "+x"(sum) : "x"(_mm256_madd_epi16(codes, token)));
    return sum;
  }
};

}  // namespace

const Core kIntegerAvx2Core = kWideIntegers<MultiplyAndAdd>;

}  // namespace quire::gemm
