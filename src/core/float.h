// Conversions between float32 and the narrower floats. All round to nearest even; NaN stays NaN (made quiet).
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace quire {

// bfloat16: the upper half of a float32. A distinct type, so that it is not mistaken for an integer or a
// half.
struct bf16 {
  uint16_t bits = 0;
  bool operator==(const bf16&) const = default;
};
struct half {
  uint16_t bits = 0;
  bool operator==(const half&) const = default;
};

// E4M3 as OCP defines it (E4M3FN): sign, 4 exponent bits (bias 7), 3 mantissa bits; no infinity, 0x7f is NaN.
struct e4m3 {
  uint8_t bits = 0;
  bool operator==(const e4m3&) const = default;
};
inline constexpr float kE4m3Max = 448.0f;

inline float to_float(float x) {
  return x;
}
inline float to_float(bf16 x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16);
}

inline bf16 to_bf16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((u >> 16) | 0x40u)};
  return {static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

inline float to_float(half h) {
  const uint32_t sign = static_cast<uint32_t>(h.bits & 0x8000u) << 16, mag = h.bits & 0x7fffu;
  if (mag >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | ((mag & 0x3ffu) << 13));
  // Shifting the half into place leaves an exponent bias of 15; 2^112 corrects it, subnormals included.
  const float m = std::bit_cast<float>(mag << 13) * 0x1p112f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(m) | sign);
}

inline half to_half(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x), sign = (u >> 16) & 0x8000u, mag = u & 0x7fffffffu;
  if (mag > 0x7f800000u) return {static_cast<uint16_t>(sign | 0x7e00u)};
  if (mag >= 0x477ff000u) return {static_cast<uint16_t>(sign | 0x7c00u)};  // rounds above 65504: infinity
  if (mag < 0x38800000u) {  // subnormal or zero: adding 0.5 makes the FPU round at the half's last bit (2^-24)
    const float r = std::bit_cast<float>(mag) + 0.5f;
    return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(r) - 0x3f000000u))};
  }
  const uint32_t r = mag + 0xfffu + ((mag >> 13) & 1u) - 0x38000000u;
  return {static_cast<uint16_t>(sign | (r >> 13))};
}

inline float to_float(e4m3 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x80u) << 24, mag = x.bits & 0x7fu;
  if (mag == 0x7f) return std::bit_cast<float>(sign | 0x7fc00000u);
  // As for halves: the exponent's bias is 7, and 2^120 makes 127 of it.
  return std::bit_cast<float>(std::bit_cast<uint32_t>(std::bit_cast<float>(mag << 20) * 0x1p120f) | sign);
}

// What lies beyond 448, infinity included, becomes 448.
inline e4m3 to_e4m3(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x), sign = (u >> 24) & 0x80u, mag = u & 0x7fffffffu;
  if (mag > 0x7f800000u) return {static_cast<uint8_t>(sign | 0x7f)};
  if (mag >= std::bit_cast<uint32_t>(kE4m3Max)) return {static_cast<uint8_t>(sign | 0x7e)};
  if (mag < 0x3c800000u) {  // below 2^-6: adding 2^14 makes the FPU round at the last bit, 2^-9
    const float r = std::bit_cast<float>(mag) + 0x1p14f;
    return {static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(r) - std::bit_cast<uint32_t>(0x1p14f)))};
  }
  const uint32_t r = mag + 0x7ffffu + ((mag >> 20) & 1u) - 0x3c000000u;
  return {static_cast<uint8_t>(sign | (r >> 20))};
}

template <class T>
T from_float(float x);
template <>
inline float from_float<float>(float x) {
  return x;
}
template <>
inline bf16 from_float<bf16>(float x) {
  return to_bf16(x);
}
template <>
inline half from_float<half>(float x) {
  return to_half(x);
}

}  // namespace quire
