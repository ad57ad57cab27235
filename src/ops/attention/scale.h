// The scales of E4M3 caches: one for each token, KV head, and of key and value, computed from that token's head alone
// when it is written, so that no row's bits depend on when or beside whom it came. Host and device share this.
//
// A scale has four significant bits, as a code has, so that code * scale is exact in bf16. It is one byte: 5 bits of
// exponent, 3 of mantissa. Of the eight that bring a head's largest magnitude into a code's last octave, (224, 448],
// the one is chosen under which that magnitude is rounded least: it weighs most in every product (docs/numerics.md has
// the numbers).
#pragma once

#include <bit>
#include <cstdint>

namespace quire::attention {

inline constexpr uint32_t kNoNumber = 255;   // a head with an infinity or a NaN: all of it is NaN
inline constexpr uint32_t kMostScale = 254;  // 224, so that what is beyond 100352 saturates
inline constexpr float kMostMagnitude = 448.0f * 224.0f;

// (1 + mantissa / 8) * 2^(exponent - 24); NaN for a head that is none.
constexpr float scale_of(uint32_t scale) {
  return std::bit_cast<float>(scale == kNoNumber ? 0x7fc00000u : (scale << 20) + ((127u - 24u) << 23));
}

constexpr float inverse_scale_of(uint32_t scale) {
  return 1.0f / scale_of(scale);
}

// How far `largest` is from the nearest code times the scale, and the scale, for one of eight mantissas: the scale's
// exponent is the one that brings it into (224, 448], as far as there are exponents.
struct ScaleChoice {
  float error;
  uint32_t scale;
};
constexpr ScaleChoice scale_with(float largest, uint32_t mantissa) {
  // 448 * scale >= largest > 224 * scale: 448 is 1.75 * 2^8, so only significands are compared.
  const uint32_t bits = std::bit_cast<uint32_t>(largest);
  const float significand = std::bit_cast<float>((bits & 0x7fffffu) | 0x3f800000u);
  const float reach = 1.75f * (1.0f + static_cast<float>(mantissa) * 0.125f);  // [1.75, 3.3]: exact
  int exponent = static_cast<int>(bits >> 23) - 127 - 8;
  if (significand > reach) ++exponent;
  if (significand * 2 <= reach) --exponent;
  const int field = exponent + 24;
  const uint32_t all = field < 0 ? 0 : static_cast<uint32_t>(field) << 3 | mantissa;
  const uint32_t scale = all > kMostScale ? kMostScale : all;
  const float s = scale_of(scale), code = largest / s, step = code > 256.0f ? 32.0f : 16.0f;
  const float nearest = static_cast<float>(static_cast<int>(code / step + 0.5f)) * step;
  const float error = nearest * s - largest;
  return {error < 0 ? -error : error, scale};
}

// `largest`: the bits of the head's largest magnitude (as integers, magnitudes of NaN and infinity are the largest).
constexpr uint32_t choose_scale(uint32_t largest) {
  if (largest >= 0x7f800000u) return kNoNumber;
  const float magnitude = std::bit_cast<float>(largest);
  if (magnitude >= kMostMagnitude) return kMostScale;
  ScaleChoice best = scale_with(magnitude, 0);
  for (uint32_t mantissa = 1; mantissa < 8; ++mantissa) {
    const ScaleChoice other = scale_with(magnitude, mantissa);
    if (other.error < best.error) best = other;
  }
  return best.scale;
}

}  // namespace quire::attention
