// What AVX-512's decoders of formats are made of. A family of formats has a file of them (blocks32_avx512.h and so on),
// and OnAvx512 of a type names those of a format. Needs AVX-512 with VBMI and BF16; everything has internal linkage.
//
// - Rows, to bf16: `row` decodes `count` weights from the start of a block, 32 to a piece, pieces `step` elements
//   apart, 64-byte aligned. count is a multiple of kColumns; only BF16 can end within a piece, whose rest becomes zero.
//   A 4-bit format becomes a table of 16 bf16 values per scale and one look-up per 32 weights; that is exact where the
//   products of code and scale have 8 significant bits or fewer (NVFP4, MXFP4), and one rounding otherwise, or two by
//   way of half precision (lookup_avx512.h).
// - Integer and Lanes, of formats that the integer core takes: what it reads of rows as the file has them
//   (integer_avx512.h), and of repacked ones (repacked_avx512.h).
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "ops/gemm/integer_avx512.h"
#include "ops/gemm/lookup_avx512.h"
#include "ops/gemm/repacked_avx512.h"

namespace quire::gemm {
namespace {

template <DType kType>
struct OnAvx512;

// d times each of eight bytes less `bias`.
inline __m256 scaled_bytes(uint64_t bytes, int bias, __m512 d) {
  const __m256i wide = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<long long>(bytes)));
  return _mm256_mul_ps(_mm512_castps512_ps256(d), _mm256_cvtepi32_ps(_mm256_sub_epi32(wide, _mm256_set1_epi32(bias))));
}

}  // namespace
}  // namespace quire::gemm
