// Tokens in FP4 beside weights in FP4: how a row is rounded. Host and device share the definition; all of it is in
// float32, rounded to nearest, ties to even.
//
// Beside NVFP4 weights each 16 columns share a scale in UE4M3, and the row a power of two, 2^(e - 10) where the row's
// largest magnitude is between 2^e and 2^(e + 1). The scale is (the largest magnitude of the 16) / 6 / (the power of
// two), rounded; a column is multiplied by 1 / (scale * power of two) and rounded to E2M1, of which 6 is the largest
// number. So the power of two keeps scales in the upper range of UE4M3 and decides nothing else, but that blocks
// 2^-17 as large as the row's largest become zeros.
//
// Beside MXFP4 weights each 32 columns share a power of two (E8M0), a quarter of that at or below their largest
// magnitude, or a half of it where this is above 1.75 times the power of two.
//
// Magnitudes below 2^-100 count as that where scales are chosen. A row with a NaN or an infinity is all NaNs.
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace quire::gemm {

inline constexpr uint32_t kLeastFp4Magnitude = (127 - 100) << 23;  // 2^-100, as a float's bits
inline constexpr uint32_t kNoNumber = 0x7f800000u;                 // the bits of magnitudes from here on
inline constexpr int kFp4RowBits = 10;                             // below the row's largest
inline constexpr int kMxfp4Bits = 2;                               // below that of 32 columns
inline constexpr uint32_t kMxfp4RoundedUp = 0x600000u;             // a mantissa above this: 1.75

// Columns that share a scale.
constexpr int fp4_block(DType weights) {
  return weights == DType::kMXFP4 ? 32 : 16;
}

// The scale of columns whose largest magnitude has these bits, in a row whose largest has those; and what a number
// counts as under a scale.
float fp4_scale(DType weights, uint32_t block, uint32_t row);
float to_fp4(float x, float scale);

// What a row of `cols` numbers, a multiple of fp4_block(), counts as beside such weights.
void round_to_fp4(DType weights, const float* x, int64_t cols, float* to);

}  // namespace quire::gemm
