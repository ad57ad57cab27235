// The noise of the draw: one number for each (seed, position, token), of the standard Gumbel distribution. The token
// whose logit / temperature + noise is largest then follows the softmax ("Gumbel-max"), and two rows of nearly the same
// logits that are drawn with the same noise mostly get the same token, whatever else differs between them.
//
// CPUs and GPUs get the same bits: every operation below is one that IEEE 754 rounds exactly (additions, products,
// quotients, fused multiply-adds), and no product is added to something except in an fmaf, so that no compiler can fuse
// what is not fused here. CUDA sources read this file too.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "ops/sampling/philox.h"

#ifdef __CUDACC__
#define QUIRE_HOST_DEVICE __host__ __device__
#else
#define QUIRE_HOST_DEVICE
#endif

namespace quire {

// The random bits of four tokens, 4 * group to 4 * group + 3: Philox keyed by the seed, its counter (position, group).
constexpr PhiloxCounter noise_group(uint64_t seed, int64_t position, uint32_t group) {
  const auto p = static_cast<uint64_t>(position);
  return philox4x32({static_cast<uint32_t>(p), static_cast<uint32_t>(p >> 32), group, 0},
                    {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
}
constexpr uint32_t noise_bits(uint64_t seed, int64_t position, int32_t id) {
  const auto i = static_cast<uint32_t>(id);
  return noise_group(seed, position, i / 4)[i % 4];
}

// 2 atanh(s) for |s| <= 0.2: the series up to s^9, relative error below 1e-7.
QUIRE_HOST_DEVICE inline float twice_atanh(float s) {
  const float s2 = s * s;
  float p = fmaf(s2, 2.0f / 9, 2.0f / 7);
  p = fmaf(s2, p, 2.0f / 5);
  p = fmaf(s2, p, 2.0f / 3);
  p = fmaf(s2, p, 2.0f);
  return s * p;
}

// ln x of a normal x > 0: x = 2^k m with m in [2/3, 4/3).
QUIRE_HOST_DEVICE inline float natural_log(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const auto k = static_cast<int32_t>(bits - 0x3f2aaaabu) >> 23;  // from the bits of 2/3
  const float m = std::bit_cast<float>(bits - (static_cast<uint32_t>(k) << 23));
  const float log_m = twice_atanh((m - 1.0f) / (m + 1.0f));
  return fmaf(static_cast<float>(k), 0.693147181f, log_m);
}

// -ln(-ln(1 - v)) where v = (bits + 1/2) / 2^32. The largest noise is that of bits 0, 22.87: it is where v is precise
// that a token wins. A token whose share is below 2^-34 is thus practically never drawn.
QUIRE_HOST_DEVICE inline float gumbel_of(uint32_t bits) {
  float e;  // -ln(1 - v), an exponential variate
  if (bits < 0x55555555u) {
    const float v = (static_cast<float>(bits) + 0.5f) * 0x1p-32f;
    e = twice_atanh(v / (2.0f - v));
  } else {
    e = -natural_log((static_cast<float>(~bits) + 0.5f) * 0x1p-32f);
  }
  return -natural_log(e);
}

// The noise of a token at a position of a sequence with this seed. A drafter that adds it to its own logits draws what
// the model would draw from them.
inline float gumbel_noise(uint64_t seed, int64_t position, int32_t id) {
  return gumbel_of(noise_bits(seed, position, id));
}

// What the drawn token has the most of, the lower id among equals. inverse_temperature is 1.0f / temperature. Beyond
// float32's range it is its largest or least number, so that a token with a finite logit always has one.
QUIRE_HOST_DEVICE inline float draw_score(float logit, float inverse_temperature, float noise) {
  return fminf(fmaxf(fmaf(logit, inverse_temperature, noise), -0x1.fffffep127f), 0x1.fffffep127f);
}

}  // namespace quire
