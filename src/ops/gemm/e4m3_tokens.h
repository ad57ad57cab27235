// Tokens in E4M3 beside weights in E4M3: how a row is rounded. Host and device share the definition.
//
// Each 128 columns of a row have a scale, their largest magnitude / 448 (the largest number of E4M3), so that this one
// becomes the largest code. A column is multiplied by 448 / the largest magnitude and rounded to the nearest code, to
// even; all of it in float32. Columns of nothing but numbers below 2^-100 count as such of that magnitude. A NaN or an
// infinity makes NaNs of its 128 columns.
#pragma once

#include <cstdint>

namespace quire::gemm {

inline constexpr int kE4m3TokenCols = 128;
inline constexpr float kLargestE4m3 = 448.0f, kLeastE4m3Magnitude = 0x1p-100f;

// What a row of `cols` numbers, a multiple of 128, counts as: its codes times their scales.
void round_to_e4m3(const float* x, int64_t cols, float* to);

}  // namespace quire::gemm
