// E4M3 elements of the cache to bf16, exactly: what follows is the arithmetic of a bf16 cache that holds the same
// numbers.
#pragma once

#include <cuda_runtime.h>

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

// The 16 codes of chunk `chunk` of a token's slab, as it lies in the cache, as two pieces of eight bf16: in a tile
// whose slabs have rows of 128 bytes, the token's at `row`, with pieces exchanged as in a bf16 cache.
__device__ __forceinline__ void store_widened(uint32_t row, int token, int chunk, const uint4& x, uint32_t factors) {
  const auto write = [&](int piece, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(row + (piece ^ (token % 8)) * 16), "r"(a), "r"(b),
                 "r"(c), "r"(d)
                 : "memory");
  };
  const int piece = 2 * (chunk ^ (token / 2 % 4));
  write(piece, widen_even(x.x, factors), widen_even(x.y, factors), widen_even(x.z, factors), widen_even(x.w, factors));
  write(piece + 1, widen_odd(x.x, factors), widen_odd(x.y, factors), widen_odd(x.z, factors), widen_odd(x.w, factors));
}

}  // namespace quire::cuda
