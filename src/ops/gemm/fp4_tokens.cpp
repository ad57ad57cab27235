#include "ops/gemm/fp4_tokens.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "quant/fp4.h"

namespace quire::gemm {
namespace {

uint32_t largest_bits(const float* x, int64_t count) {
  uint32_t most = kLeastFp4Magnitude;
  for (int64_t i = 0; i < count; ++i) most = std::max(most, std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu);
  return most;
}

float power_of_two(uint32_t exponent) {
  return std::bit_cast<float>(exponent << 23);
}

// The nearest number of E2M1, ties to the even code.
float to_e2m1(float x) {
  const float a = std::abs(x);
  const int code = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
  return std::copysign(quant::kE2m1[code], x);
}

float scale_beside_nvfp4(uint32_t block, uint32_t row) {
  const uint32_t exponent = (row >> 23) - kFp4RowBits;
  const float power = power_of_two(exponent), inverse = power_of_two(254 - exponent);
  return quant::decode_ue4m3(quant::encode_ue4m3(std::bit_cast<float>(block) / quant::kE2m1Max * inverse)) * power;
}

float scale_beside_mxfp4(uint32_t block) {
  const uint32_t up = (block & 0x7fffffu) > kMxfp4RoundedUp ? 1 : 0;
  return power_of_two((block >> 23) - kMxfp4Bits + up);
}

}  // namespace

float fp4_scale(DType weights, uint32_t block, uint32_t row) {
  return weights == DType::kMXFP4 ? scale_beside_mxfp4(block) : scale_beside_nvfp4(block, row);
}

float to_fp4(float x, float scale) {
  return scale == 0.0f ? 0.0f : to_e2m1(x * (1.0f / scale)) * scale;
}

void round_to_fp4(DType weights, const float* x, int64_t cols, float* to) {
  const uint32_t row = largest_bits(x, cols);
  if (row >= kNoNumber) {
    std::fill_n(to, cols, std::numeric_limits<float>::quiet_NaN());
    return;
  }
  const int64_t each = fp4_block(weights);
  for (int64_t first = 0; first < cols; first += each) {
    const int64_t end = std::min(first + each, cols);
    const float scale = fp4_scale(weights, largest_bits(x + first, end - first), row);
    for (int64_t c = first; c < end; ++c) to[c] = to_fp4(x[c], scale);
  }
}

}  // namespace quire::gemm
