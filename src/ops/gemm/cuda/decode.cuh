// Decoders: from a packed tile in shared memory to the A operand of a 16 x 8 x 16 product, in registers.
//
// Lane l = 4 g + t of a warp holds of step j (columns 16 j ... 16 j + 15) of a tile
//   a[0] = (row g, columns 2t, 2t+1)      a[1] = (row g+8, the same)
//   a[2] = (row g, columns 2t+8, 2t+9)    a[3] = (row g+8, the same)          the first column in the lower half
// A decoder yields bf16 numbers whose product with kUnit is the weight. Formats that bf16 cannot hold exactly are
// rounded to it once (to nearest even), from the same float32 numbers that quant::decode_row gives.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "core/cuda/tensor_core.cuh"
#include "ops/gemm/cuda/packed.h"

namespace quire::gemm {

using cuda::shared_address;

__device__ inline uint32_t load_shared_32(uint32_t at) {
  uint32_t x;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(at));
  return x;
}
__device__ inline uint2 load_shared_64(uint32_t at) {
  uint2 x;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(at));
  return x;
}
__device__ inline uint4 load_shared_128(uint32_t at) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(at));
  return x;
}

template <int J>
__device__ inline uint32_t word(const uint4& v) {
  static_assert(J >= 0 && J < 4);
  return J == 0 ? v.x : J == 1 ? v.y : J == 2 ? v.z : v.w;
}

// (lo, hi) rounded to bf16. kOrdered: volatile, as whatever ends a fragment for wgmma must be: where a plain move of
// the compiler's would define an operand, ptxas makes the products wait for each other. mma.sync is better off without.
template <bool kOrdered>
__device__ inline uint32_t to_bf16x2(float lo, float hi) {
  uint32_t r;
  if constexpr (kOrdered)
    asm volatile("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}
// a * b of two pairs. Adding -0 changes nothing, the sign of a zero included.
template <bool kOrdered>
__device__ inline uint32_t mul_bf16x2(uint32_t a, uint32_t b) {
  uint32_t r;
  if constexpr (kOrdered)
    asm volatile("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(0x80008000u));
  else
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(0x80008000u));
  return r;
}
// One half of a pair, twice. Moves, not a permutation: they become a modifier of the operand that they are.
template <bool kHigh>
__device__ inline uint32_t twice(uint32_t pair) {
  uint32_t both;
  if constexpr (kHigh)
    asm("{\n .reg .b16 lo, hi;\n mov.b32 {lo, hi}, %1;\n mov.b32 %0, {hi, hi};\n}" : "=r"(both) : "r"(pair));
  else
    asm("{\n .reg .b16 lo, hi;\n mov.b32 {lo, hi}, %1;\n mov.b32 %0, {lo, lo};\n}" : "=r"(both) : "r"(pair));
  return both;
}
__device__ inline float half_bits_to_float(uint32_t bits) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}

// An unsigned integer below 2^23 in the low bits of 2^23: exact.
__device__ inline float small_integer(uint32_t n) {
  return __uint_as_float(0x4b000000u | n) - 8388608.0f;
}

template <TileFormat F>
struct Decoder;

// planes x [4 steps][32 lanes] 16 bytes: a[0..3].
template <TileFormat F, int kPlaneCount>
struct PlainDecoder {
  static constexpr TileFormat kFormat = F;
  static constexpr int kTileBytes = tile_bytes(F);
  static constexpr int kPlanes = kPlaneCount;  // of a step: fragments whose sum is the weight
  static constexpr float kUnit = tile_unit(kFormat);
  struct Regs {
    uint32_t at;
  };
  __device__ static Regs load(uint32_t tile, int lane) { return {tile + lane * 16}; }
  template <bool kOrdered, int J, int P>
  __device__ static void fragment(const Regs& r, uint32_t (&a)[4]) {
    const uint4 v = load_shared_128(r.at + P * 2048 + J * 512);
    a[0] = v.x, a[1] = v.y, a[2] = v.z, a[3] = v.w;
  }
};
template <>
struct Decoder<TileFormat::kBf16> : PlainDecoder<TileFormat::kBf16, 1> {};
template <>
struct Decoder<TileFormat::kBf16x2> : PlainDecoder<TileFormat::kBf16x2, 2> {};
template <>
struct Decoder<TileFormat::kBf16x3> : PlainDecoder<TileFormat::kBf16x3, 3> {};

// E2M1 codes, 32 bits a step, 16 of each column of the pairs. Bits of a half word, s sign, m the three other bits:
//   a[0]: s 15, m 8-6     a[1]: s 11, m 4-2     a[2]: s 5 of the other half, m 14-12     a[3]: s 9, m 10 1 0
// A shift or a rotation and a mask put a code's sign and magnitude where a bf16 has sign, low exponent and first
// mantissa bits; only a[3] takes two. That is the code's value times 2^-126, subnormal codes included. The scale, times
// 2^119, makes up for all but 2^-7 = 1 / kUnit.
template <bool kOrdered>
__device__ inline void e2m1_fragment(uint32_t w, uint32_t scale_g, uint32_t scale_g8, uint32_t (&a)[4]) {
  constexpr uint32_t kCode = 0x81c081c0u;
  const uint32_t last = ((w << 6) & 0x80c080c0u) | ((w >> 2) & 0x01000100u);
  a[0] = mul_bf16x2<kOrdered>(w & kCode, scale_g);
  a[1] = mul_bf16x2<kOrdered>((w << 4) & kCode, scale_g8);
  a[2] = mul_bf16x2<kOrdered>(__funnelshift_r(w, w, 6) & kCode, scale_g);
  a[3] = mul_bf16x2<kOrdered>(last, scale_g8);
}

// [32 lanes] 16 bytes: a word for each step. Then [8 g] two words: scales of row g, of row g+8. A byte 8 (x + 22) + m
// is the scale (1 + m / 8) 2^x: 16 times the byte, and three bits above, are the bf16 of 2^119 of it. Steps 0 and 2
// have theirs where a bf16 has it, in the low and the high half; 1 and 3 when the bytes of each half change places.
// Where a scale is zero the codes are.
template <>
struct Decoder<TileFormat::kNvfp4> {
  static constexpr TileFormat kFormat = TileFormat::kNvfp4;
  static constexpr int kTileBytes = tile_bytes(kFormat), kPlanes = 1;
  static constexpr float kUnit = tile_unit(kFormat);
  struct Regs {
    uint4 codes;
    uint2 scales;
  };
  __device__ static Regs load(uint32_t tile, int lane) {
    return {load_shared_128(tile + lane * 16), load_shared_64(tile + 512 + lane / 4 * 8)};
  }
  // Of steps J and J ^ 2.
  template <int J>
  __device__ static uint32_t scale_pair(uint32_t bytes) {
    uint32_t pair;  // the bits where a byte is, and 127 + 119 - 22 = 7 * 32 of the exponent: (a & b) | c
    asm("lop3.b32 %0, %1, %2, %3, 0xea;"
        : "=r"(pair)
        : "r"(J % 2 == 0 ? bytes : __byte_perm(bytes, 0, 0x2301)), "r"(0x0ff00ff0u), "r"(0x70007000u));
    return pair;
  }
  template <bool kOrdered, int J, int P>
  __device__ static void fragment(const Regs& r, uint32_t (&a)[4]) {
    e2m1_fragment<kOrdered>(word<J>(r.codes), twice<J / 2 == 1>(scale_pair<J>(r.scales.x)),
                            twice<J / 2 == 1>(scale_pair<J>(r.scales.y)), a);
  }
};

// Codes as NVFP4. Then [8 g] 4 bytes: exponents of row g for columns 0-31 and 32-63, then of row g+8, as a bf16 of
// the scale times 2^119 has them. Scales of 2^9 and more become infinite: such weights mean nothing in bf16 either.
template <>
struct Decoder<TileFormat::kMxfp4> {
  static constexpr TileFormat kFormat = TileFormat::kMxfp4;
  static constexpr int kTileBytes = tile_bytes(kFormat), kPlanes = 1;
  static constexpr float kUnit = tile_unit(kFormat);
  struct Regs {
    uint4 codes;
    uint32_t scales;
  };
  __device__ static Regs load(uint32_t tile, int lane) {
    return {load_shared_128(tile + lane * 16), load_shared_32(tile + 512 + lane / 4 * 4)};
  }
  template <bool kOrdered, int J, int P>
  __device__ static void fragment(const Regs& r, uint32_t (&a)[4]) {
    constexpr uint32_t kPick = 0x4040 + 0x0101 * (J / 2);
    e2m1_fragment<kOrdered>(word<J>(r.codes), __byte_perm(r.scales, 0, kPick) << 7,
                            __byte_perm(r.scales, 0, kPick + 0x0202) << 7, a);
  }
};

// [2 halves][32 lanes] 16 bytes: of two steps each the codes + 128 of a[0] ... a[3], pairs in order. Then [8 g] halves:
// scales of row g for columns 0-31 and 32-63, then of row g+8.
template <>
struct Decoder<TileFormat::kQ8_0> {
  static constexpr TileFormat kFormat = TileFormat::kQ8_0;
  static constexpr int kTileBytes = tile_bytes(kFormat), kPlanes = 1;
  static constexpr float kUnit = tile_unit(kFormat);
  struct Regs {
    uint32_t at;
    uint2 scales;
  };
  __device__ static Regs load(uint32_t tile, int lane) {
    return {tile + lane * 16, load_shared_64(tile + 1024 + lane / 4 * 8)};
  }
  template <bool kOrdered>
  __device__ static uint32_t pair(uint32_t codes, int first, float d) {
    const float lo = __uint_as_float(__byte_perm(codes, 0x4b000000u, 0x7440 + first)) - 8388736.0f;
    const float hi = __uint_as_float(__byte_perm(codes, 0x4b000000u, 0x7441 + first)) - 8388736.0f;
    return to_bf16x2<kOrdered>(__fmul_rn(lo, d), __fmul_rn(hi, d));
  }
  template <bool kOrdered, int J, int P>
  __device__ static void fragment(const Regs& r, uint32_t (&a)[4]) {
    const uint2 codes = load_shared_64(r.at + J / 2 * 512 + J % 2 * 8);
    const float d = half_bits_to_float(J < 2 ? r.scales.x & 0xffffu : r.scales.x >> 16);
    const float d8 = half_bits_to_float(J < 2 ? r.scales.y & 0xffffu : r.scales.y >> 16);
    a[0] = pair<kOrdered>(codes.x, 0, d);
    a[1] = pair<kOrdered>(codes.x, 2, d8);
    a[2] = pair<kOrdered>(codes.y, 0, d);
    a[3] = pair<kOrdered>(codes.y, 2, d8);
  }
};

// Codes of E4M3 in the order of Q8_0's. Then [8 g] two floats: 2^8 times the scale of row g, of row g+8. A code moved
// to where a half has sign, exponent and mantissa is 2^-8 of what it is, subnormals included.
template <>
struct Decoder<TileFormat::kFp8> {
  static constexpr TileFormat kFormat = TileFormat::kFp8;
  static constexpr int kTileBytes = tile_bytes(kFormat), kPlanes = 1;
  static constexpr float kUnit = tile_unit(kFormat);
  struct Regs {
    uint32_t at;
    uint2 scales;
  };
  __device__ static Regs load(uint32_t tile, int lane) {
    return {tile + lane * 16, load_shared_64(tile + 1024 + lane / 4 * 8)};
  }
  // Of bytes kFirst and kFirst + 1.
  template <bool kOrdered, int kFirst>
  __device__ static uint32_t pair(uint32_t codes, float scale) {
    const uint32_t high =
        __byte_perm(codes, 0, kFirst == 0 ? 0x1404 : 0x3424);  // a code in the upper byte of each half
    const uint32_t halves = (high & 0x80008000u) | ((high >> 1) & 0x3f803f80u);
    return to_bf16x2<kOrdered>(__fmul_rn(half_bits_to_float(halves & 0xffffu), scale),
                               __fmul_rn(half_bits_to_float(halves >> 16), scale));
  }
  template <bool kOrdered, int J, int P>
  __device__ static void fragment(const Regs& r, uint32_t (&a)[4]) {
    const uint2 codes = load_shared_64(r.at + J / 2 * 512 + J % 2 * 8);
    const float s = __uint_as_float(r.scales.x), s8 = __uint_as_float(r.scales.y);
    a[0] = pair<kOrdered, 0>(codes.x, s);
    a[1] = pair<kOrdered, 2>(codes.x, s8);
    a[2] = pair<kOrdered, 0>(codes.y, s);
    a[3] = pair<kOrdered, 2>(codes.y, s8);
  }
};

// [32 lanes] 16 bytes: a word for each step, nibbles of a[0] ... a[3], pairs in order. Then [8 g] 16 bytes: halves d,
// dmin of row g, of row g+8; bytes sc, mn for columns 0-31, sc, mn for 32-63 of row g, the same of row g+8.
template <>
struct Decoder<TileFormat::kQ4_K> {
  static constexpr TileFormat kFormat = TileFormat::kQ4_K;
  static constexpr int kTileBytes = tile_bytes(kFormat), kPlanes = 1;
  static constexpr float kUnit = tile_unit(kFormat);
  struct Regs {
    uint4 codes, scales;
  };
  __device__ static Regs load(uint32_t tile, int lane) {
    return {load_shared_128(tile + lane * 16), load_shared_128(tile + 512 + lane / 4 * 16)};
  }
  // d sc q and dmin mn are exact, so this rounds once, as decode_row does.
  template <bool kOrdered>
  __device__ static uint32_t pair(uint32_t codes, int shift, float scale, float min) {
    const float lo = small_integer((codes >> shift) & 15u), hi = small_integer((codes >> (shift + 4)) & 15u);
    return to_bf16x2<kOrdered>(__fmaf_rn(lo, scale, -min), __fmaf_rn(hi, scale, -min));
  }
  template <bool kOrdered, int J, int P>
  __device__ static void fragment(const Regs& r, uint32_t (&a)[4]) {
    constexpr int kAt = J / 2 * 16;
    const uint32_t w = word<J>(r.codes);
    const float d = half_bits_to_float(r.scales.x & 0xffffu), dmin = half_bits_to_float(r.scales.x >> 16);
    const float d8 = half_bits_to_float(r.scales.y & 0xffffu), dmin8 = half_bits_to_float(r.scales.y >> 16);
    const float s = __fmul_rn(d, small_integer((r.scales.z >> kAt) & 255u));
    const float m = __fmul_rn(dmin, small_integer((r.scales.z >> (kAt + 8)) & 255u));
    const float s8 = __fmul_rn(d8, small_integer((r.scales.w >> kAt) & 255u));
    const float m8 = __fmul_rn(dmin8, small_integer((r.scales.w >> (kAt + 8)) & 255u));
    a[0] = pair<kOrdered>(w, 0, s, m);
    a[1] = pair<kOrdered>(w, 8, s8, m8);
    a[2] = pair<kOrdered>(w, 16, s, m);
    a[3] = pair<kOrdered>(w, 24, s8, m8);
  }
};

// Low four bits as Q4_K's. Then [32 lanes] 8 bytes: the high two bits, 16 bits a step in the same order. Then [8 g] 16
// bytes: signed scales of row g, a byte for each step, of row g+8; halves d of row g, of row g+8; four bytes of
// padding.
template <>
struct Decoder<TileFormat::kQ6_K> {
  static constexpr TileFormat kFormat = TileFormat::kQ6_K;
  static constexpr int kTileBytes = tile_bytes(kFormat), kPlanes = 1;
  static constexpr float kUnit = tile_unit(kFormat);
  struct Regs {
    uint4 low;
    uint2 high;
    uint4 scales;
  };
  __device__ static Regs load(uint32_t tile, int lane) {
    return {load_shared_128(tile + lane * 16), load_shared_64(tile + 512 + lane * 8),
            load_shared_128(tile + 768 + lane / 4 * 16)};
  }
  template <bool kOrdered>
  __device__ static uint32_t pair(uint32_t low, uint32_t high, int index, float scale) {
    const uint32_t lo = ((low >> (4 * index)) & 15u) | ((high >> (2 * index)) & 3u) << 4;
    const uint32_t hi = ((low >> (4 * index + 4)) & 15u) | ((high >> (2 * index + 2)) & 3u) << 4;
    return to_bf16x2<kOrdered>(__fmul_rn(small_integer(lo) - 32.0f, scale),
                               __fmul_rn(small_integer(hi) - 32.0f, scale));
  }
  template <bool kOrdered, int J, int P>
  __device__ static void fragment(const Regs& r, uint32_t (&a)[4]) {
    const uint32_t low = word<J>(r.low);
    const uint32_t high = ((J < 2 ? r.high.x : r.high.y) >> (J % 2 * 16)) & 0xffffu;
    const float s = __fmul_rn(half_bits_to_float(r.scales.z & 0xffffu),
                              static_cast<float>(static_cast<int8_t>(r.scales.x >> (8 * J))));
    const float s8 =
        __fmul_rn(half_bits_to_float(r.scales.z >> 16), static_cast<float>(static_cast<int8_t>(r.scales.y >> (8 * J))));
    a[0] = pair<kOrdered>(low, high, 0, s);
    a[1] = pair<kOrdered>(low, high, 2, s8);
    a[2] = pair<kOrdered>(low, high, 4, s);
    a[3] = pair<kOrdered>(low, high, 6, s8);
  }
};

}  // namespace quire::gemm
