// E4M3 elements of the cache to bf16, exactly: what follows is the arithmetic of a bf16 cache that holds the same
// numbers.
#pragma once

#include <cstdint>

#include "ops/attention/scale.h"

namespace quire::cuda {

// The bf16 by which a token's codes, read as bf16 with the exponent's bias of E4M3, are to be multiplied: its scale
// times 2^(127 - 7). NaN for a head that is none.
__device__ __forceinline__ uint32_t widening_factor(uint32_t scale) {
  return scale == attention::kNoNumber ? 0x7fc0u : (scale << 4) + ((127u - 24u + 120u) << 7);
}
__device__ __forceinline__ uint32_t both_halves(uint32_t bf16_bits) {
  return bf16_bits * 0x10001u;
}

__device__ __forceinline__ uint32_t multiply_bf16(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(0x80008000u));
  return r;
}
// Bytes 0 and 2 of x, and bytes 1 and 3, as pairs of bf16; times `factors`, a pair.
__device__ __forceinline__ uint32_t widen_even(uint32_t x, uint32_t factors) {
  return multiply_bf16(((x << 4) & 0x07f007f0u) | ((x << 8) & 0x80008000u), factors);
}
__device__ __forceinline__ uint32_t widen_odd(uint32_t x, uint32_t factors) {
  return multiply_bf16(((x >> 4) & 0x07f007f0u) | (x & 0x80008000u), factors);
}

}  // namespace quire::cuda
