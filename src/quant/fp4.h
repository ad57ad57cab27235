// Scalar codecs of the 4-bit floating-point formats: E2M1 elements, UE4M3 and E8M0 block scales.
// Source: OCP Microscaling and FP8 specifications; NVFP4 as in ggml files.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace quire::quant {

// ---- E2M1: sign, 2 exponent bits (bias 1), 1 mantissa bit. Codes 8..15 are the negatives of 0..7.

inline constexpr float kE2m1[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
// Doubled, so that the values are integers: for kernels with int8 products, which halve the block scale.
inline constexpr int8_t kE2m1Doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
inline constexpr float kE2m1Max = 6;

inline constexpr float decode_e2m1(uint8_t code) {
  return kE2m1[code & 15];
}

// The nearest value, the smaller magnitude on ties; never -0; NaN gives 0.
inline uint8_t encode_e2m1(float x) {
  const float a = std::fabs(x);
  const int magnitude = (a > 0.25f) + (a > 0.75f) + (a > 1.25f) + (a > 1.75f) + (a > 2.5f) + (a > 3.5f) + (a > 5.0f);
  return static_cast<uint8_t>(x < 0 && magnitude > 0 ? magnitude | 8 : magnitude);
}

// ---- UE4M3: the non-negative half of E4M3FN. Bits 6..3 exponent (bias 7), bits 2..0 mantissa; largest 448
// (0x7e).

inline constexpr float kUe4m3Max = 448;

// Bit 7 is ignored, and 0x7f (NaN in E4M3FN) decodes as 0, as other engines do with such files.
inline constexpr float decode_ue4m3(uint8_t code) {
  const uint32_t magnitude = code & 0x7fu;
  if (magnitude == 0x7f) return 0;
  if (magnitude < 8) return static_cast<float>(magnitude) * 0x1p-9f;
  return std::bit_cast<float>((magnitude << 20) + ((127u - 7u) << 23));
}

// The nearest value, ties to even; clamped to 448. Negative numbers and NaN give 0.
inline uint8_t encode_ue4m3(float x) {
  if (!(x > 0)) return 0;
  if (x >= kUe4m3Max) return 0x7e;
  // Subnormal: adding 2^14 leaves 2^-9 as the last bit of the sum, and the addition rounds to even.
  if (x < 0x1p-6f) return static_cast<uint8_t>(std::bit_cast<uint32_t>(x + 0x1p14f) - std::bit_cast<uint32_t>(0x1p14f));
  const uint32_t u = std::bit_cast<uint32_t>(x);
  return static_cast<uint8_t>((u + 0x7ffffu + ((u >> 20) & 1u) - ((127u - 7u) << 23)) >> 20);
}

// ---- E8M0: a power of two, 2^(code - 127); 255 is NaN.

inline constexpr float decode_e8m0(uint8_t code) {
  if (code == 255) return std::numeric_limits<float>::quiet_NaN();
  if (code == 0) return 0x1p-127f;  // subnormal as a float
  return std::bit_cast<float>(static_cast<uint32_t>(code) << 23);
}

}  // namespace quire::quant
