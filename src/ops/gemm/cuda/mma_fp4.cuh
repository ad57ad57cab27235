// The product of FP4 by FP4 of tensor cores of compute capability 12.x (mma.sync, kind::mxf4nvf4 and kind::mxf4), and
// how its operand A is made of packed weights. From here on nothing but multiply_fp4() knows what the device offers.
//
// D [16, 8] += A [16, 64] B [64, 8], where each 16 columns of a row (NVFP4; of MXFP4 each 32) have a scale. As PTX has
// it, lane 4 g + t holds
//   a[0] = (row g, columns 8t ... 8t+7)         a[1] = (row g+8, the same)
//   a[2] = (row g, columns 8t+32 ... 8t+39)     a[3] = (row g+8, the same)     the first column in the lowest bits
//   b.x  = (column g, rows 8t ... 8t+7)         b.y  = (column g, rows 8t+32 ... 8t+39)
//   d    = (row g, columns 2t, 2t+1), (row g+8, the same)
// Scales of A's row g are the bytes of a register of lane 4 g, those of row g+8 of lane 4 g + 1; of B's column g of
// lane 4 g; ascending from the lowest byte. (Others' are used where thread-id selectors say so, which are 0 here.)
//
// Which columns of K are named 0 ... 63 is free if both operands agree, as long as those that share a scale stay
// together. So words of a packed tile (decode.cuh), which hold four codes of row g and four of row g+8, become an A by
// moving bits within lanes, and tokens are written in that order where they are rounded (quantize_fp4.cuh):
//   NVFP4  lanes with t < 2 have steps 0 and 1 (of 16 columns each) of their own word and of lane t + 2's, the others
//          steps 2 and 3: the scales' order is 0, 2, 1, 3
//   MXFP4  each lane has its own words: steps 0 and 1, then 2 and 3
// and eight codes of two words, of lanes t and t', are columns 2t, 2t+8, 2t+1, 2t+9 of the step, then those of t'.
#pragma once

#include "core/cuda/target_fp4.cuh"
#include "ops/gemm/cuda/decode.cuh"

namespace quire::gemm::fp4 {

// ---- The product

// Twice the number of a code of E2M1.
__device__ inline int twice_e2m1(uint32_t code) {
  const int magnitude = static_cast<int>(0x0c08060403020100ull >> (8 * (code & 7u)) & 15u);
  return (code & 8u) != 0 ? -magnitude : magnitude;
}
__device__ inline int dot_of_codes(uint32_t a, uint32_t b) {  // four times the sum of eight products
  int sum = 0;
#pragma unroll
  for (int i = 0; i < 32; i += 4) sum += twice_e2m1(a >> i) * twice_e2m1(b >> i);
  return sum;
}
template <TileFormat F>
__device__ inline float scale_of_byte(uint32_t code) {
  if constexpr (F == TileFormat::kMxfp4) return code == 0 ? 0x1p-127f : __uint_as_float(code << 23);
  return code < 8 ? static_cast<float>(code) * 0x1p-9f : __uint_as_float((code << 20) + ((127u - 7u) << 23));
}

// The same by shuffles: blocks in ascending order, their sums exact, each added by one fma.
template <TileFormat F>
__device__ inline void emulate_fp4(float (&d)[4], const uint32_t (&a)[4], const uint2& b, uint32_t scale_a,
                                   uint32_t scale_b) {
  constexpr int kBlocks = F == TileFormat::kMxfp4 ? 2 : 4, kLanes = kBlocks == 4 ? 2 : 4;
  const int lane = static_cast<int>(threadIdx.x) % 32, quad = lane & ~3, column = lane % 4 * 8;  // lane of column 2t
  const uint32_t row = __shfl_sync(~0u, scale_a, quad), row8 = __shfl_sync(~0u, scale_a, quad + 1);
  const uint32_t col = __shfl_sync(~0u, scale_b, column), next = __shfl_sync(~0u, scale_b, column + 4);
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    const int half = block * 2 / kBlocks, first = kBlocks == 4 ? block % 2 * 2 : 0;
    int sum[4] = {};
    for (int t = first; t < first + kLanes; ++t) {
      const uint32_t a0 = __shfl_sync(~0u, a[2 * half], quad + t), a1 = __shfl_sync(~0u, a[2 * half + 1], quad + t);
      const uint32_t own = half == 0 ? b.x : b.y;
      const uint32_t b0 = __shfl_sync(~0u, own, column + t), b1 = __shfl_sync(~0u, own, column + 4 + t);
      sum[0] += dot_of_codes(a0, b0);
      sum[1] += dot_of_codes(a0, b1);
      sum[2] += dot_of_codes(a1, b0);
      sum[3] += dot_of_codes(a1, b1);
    }
    const auto byte = [&](uint32_t scales) { return scale_of_byte<F>(scales >> (8 * block) & 0xffu); };
    const float scales[4] = {byte(row) * byte(col), byte(row) * byte(next), byte(row8) * byte(col),
                             byte(row8) * byte(next)};
#pragma unroll
    for (int i = 0; i < 4; ++i) d[i] = __fmaf_rn(static_cast<float>(sum[i]) * 0.25f, scales[i], d[i]);
  }
}

template <TileFormat F>
__device__ __forceinline__ void multiply_fp4(float (&d)[4], const uint32_t (&a)[4], const uint2& b, uint32_t scale_a,
                                             uint32_t scale_b) {
  if constexpr (!cuda::kForFp4) {
    emulate_fp4<F>(d, a, b, scale_a, scale_b);
  } else if constexpr (F == TileFormat::kMxfp4) {
    asm("mma.sync.aligned.m16n8k64.row.col.kind::mxf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue8m0 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3}, {%10}, {0, 0}, {%11}, {0, 0};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y), "r"(scale_a), "r"(scale_b));
  } else {
    asm("mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3}, {%10}, {0, 0}, {%11}, {0, 0};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y), "r"(scale_a), "r"(scale_b));
  }
}

// ---- Weights

// Bits of `a` where the mask has them, else those of `b`.
__device__ inline uint32_t choose_bits(uint32_t mask, uint32_t a, uint32_t b) {
  return (a & mask) | (b & ~mask);
}
// The four codes of row g of a packed word (e2m1_fragment: a[0] and a[2]), in the upper bytes of both halves; of row
// g+8 (a[1] and a[3]). Other bits are anything.
__device__ inline uint32_t codes_of_row(uint32_t w) {
  const uint32_t first = choose_bits(0x07000700u, w << 2, w >> 4);
  const uint32_t last = choose_bits(0x70007000u, w, __funnelshift_l(w, w, 26));
  return choose_bits(0xf000f000u, last, first);
}
__device__ inline uint32_t codes_of_row8(uint32_t w) {
  const uint32_t both = choose_bits(0x87008700u, w << 6, w);
  const uint32_t last = choose_bits(0x40004000u, w << 4, w << 12);
  return choose_bits(0x70007000u, last, both);
}
// Eight codes of two of these, those of the first in the lower half.
__device__ inline uint32_t join_codes(uint32_t first, uint32_t second) {
  return __byte_perm(first, second, 0x7531);
}

// Where a lane's 16 bytes of a tile lie in shared memory: exchanged so that halves of them are read without conflicts.
__device__ inline int place_of_lane(int lane) {
  return lane ^ (lane >> 2 & 2);
}

// Four scales of Decoder<kNvfp4> as UE4M3, in the order 0, 2, 1, 3.
__device__ inline uint32_t ue4m3_of_normal(uint32_t byte) {
  if (byte >= 128) return byte - 120;
  return byte < 104 ? 0 : ((byte & 7u) | 8u) >> (16 - (byte >> 3));
}
__device__ inline uint32_t nvfp4_scales(uint32_t w) {
  const uint32_t even = w >> 4 & 0x00ff00ffu, odd = (w & 0x000f000fu) << 4 | (w >> 12 & 0x000f000fu);
  const uint32_t bytes = __byte_perm(even, odd, 0x6420);
  if ((bytes & 0x80808080u) == 0x80808080u) return bytes - 0x78787878u;
  uint32_t scales = 0;
#pragma unroll
  for (int i = 0; i < 32; i += 8) scales |= ue4m3_of_normal(bytes >> i & 0xffu) << i;
  return scales;
}
// Two scales of Decoder<kMxfp4> as E8M0. What was too large for it stays no number.
__device__ inline uint32_t e8m0_of_packed(uint32_t byte) {
  return byte == 255 ? 255 : max(byte, 119u) - 119;
}
__device__ inline uint32_t mxfp4_scales(uint32_t halves, int half) {
  const uint32_t own = halves >> (16 * half);
  return e8m0_of_packed(own & 0xffu) | e8m0_of_packed(own >> 8 & 0xffu) << 8;
}

// A row tile's share of a lane.
struct Weights {
  uint32_t codes[4], scales;
};
template <TileFormat F>
__device__ __forceinline__ Weights load_weights(uint32_t tile, int lane) {
  Weights a;
  const int half = lane % 2;
  if constexpr (F == TileFormat::kMxfp4) {
    const uint4 v = load_shared_128(tile + place_of_lane(lane) * 16);
    a.codes[0] = join_codes(codes_of_row(v.x), codes_of_row(v.y));
    a.codes[1] = join_codes(codes_of_row8(v.x), codes_of_row8(v.y));
    a.codes[2] = join_codes(codes_of_row(v.z), codes_of_row(v.w));
    a.codes[3] = join_codes(codes_of_row8(v.z), codes_of_row8(v.w));
    a.scales = mxfp4_scales(load_shared_32(tile + 512 + lane / 4 * 4), half);
  } else {
    const uint32_t steps = tile + (lane & 2) * 4;
    const uint2 own = load_shared_64(steps + place_of_lane(lane) * 16);
    const uint2 other = load_shared_64(steps + place_of_lane(lane ^ 2) * 16);
    a.codes[0] = join_codes(codes_of_row(own.x), codes_of_row(other.x));
    a.codes[1] = join_codes(codes_of_row8(own.x), codes_of_row8(other.x));
    a.codes[2] = join_codes(codes_of_row(own.y), codes_of_row(other.y));
    a.codes[3] = join_codes(codes_of_row8(own.y), codes_of_row8(other.y));
    a.scales = nvfp4_scales(load_shared_32(tile + 512 + lane / 4 * 8 + half * 4));
  }
  return a;
}

}  // namespace quire::gemm::fp4
