// Packing on the device: a warp makes one tile, every lane what it will read of it later.
#include "ops/gemm/cuda/pack.h"

#include <algorithm>
#include <iterator>

#include "core/cuda/check.h"
#include "ops/gemm/cuda/decode.cuh"
#include "ops/gemm/cuda/with_format.h"
#include "quant/format_table.h"

namespace quire::gemm {
namespace {

// The matrices that a tile's rows come from.
struct Source {
  DType dtype;
  const uint8_t* first;
  const uint8_t* second;
  int64_t row_bytes, expert_rows;
  int32_t rows, cols;
  bool paired;
};

// A tile's rows in the source; null for a row of padding.
struct TileRows {
  const Source& s;
  int64_t expert;
  int32_t row_tile, col_tile;

  __device__ const uint8_t* row(int r) const {
    const int32_t at = s.paired ? row_tile * 8 + (r & 7) : row_tile * 16 + r;
    if (at >= s.rows) return nullptr;
    return (s.paired && r >= 8 ? s.second : s.first) + (expert * s.expert_rows + at) * s.row_bytes;
  }
  __device__ int32_t col(int c) const { return col_tile * kTileCols + c; }
};

__device__ uint32_t load_u16(const uint8_t* p) {
  return p[0] | static_cast<uint32_t>(p[1]) << 8;
}
__device__ uint32_t load_u32(const uint8_t* p) {
  return load_u16(p) | load_u16(p + 2) << 16;
}
__device__ float load_half(const uint8_t* p) {
  return half_bits_to_float(load_u16(p));
}
__device__ uint32_t split_nibble(const uint8_t* qs, int i) {
  return i < 16 ? qs[i] & 15u : qs[i - 16] >> 4;
}

struct ScaleMin {
  uint32_t scale, min;
};
// The 6-bit scales of Q4_K and Q5_K (quant/kquants.cpp).
__device__ ScaleMin k_scale(const uint8_t* s, int j) {
  if (j < 4) return {s[j] & 63u, s[j + 4] & 63u};
  return {(s[j + 4] & 15u) | (s[j - 4] >> 6 << 4), static_cast<uint32_t>(s[j + 4] >> 4) | (s[j] >> 6 << 4)};
}
__device__ uint32_t k_nibble(const uint8_t* qs, int i) {
  const uint32_t byte = qs[i / 64 * 32 + i % 32];
  return i % 64 < 32 ? byte & 15u : byte >> 4;
}

// Two bits of a code of Q2_K and Q3_K (quant/kquants.cpp).
__device__ uint32_t k_crumb(const uint8_t* qs, int i) {
  return qs[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3u;
}
// The 6-bit scales of Q3_K.
__device__ int q3_scale(const uint8_t* s, int j) {
  const uint32_t low = j < 8 ? s[j] & 15u : s[j - 8] >> 4;
  return static_cast<int>(low | (s[8 + j % 4] >> (j / 4 * 2) & 3u) << 4) - 32;
}
// The 6-bit scales of IQ4_XS (quant/iq4.cpp).
__device__ int iq4_xs_scale(const uint8_t* b, int j) {
  const uint32_t low = b[4 + j / 2] >> (4 * (j % 2)) & 15u;
  return static_cast<int>(low | (load_u16(b + 2) >> (2 * j) & 3u) << 4) - 32;
}
__device__ float iq4_value(uint32_t code) {
  constexpr uint64_t kFirst = 0xf6eaddcfbfad9881u, kLast = 0x7159453526190d01u;  // quant/iq4.h, a byte each
  return static_cast<float>(static_cast<int8_t>((code < 8 ? kFirst : kLast) >> (8 * (code & 7u)) & 0xffu));
}

// The types that element() reads.
constexpr bool has_element(DType t) {
  constexpr DType kRead[] = {DType::kF32,  DType::kF16,  DType::kBF16, DType::kQ4_0, DType::kQ4_1,   DType::kQ5_0,
                             DType::kQ5_1, DType::kQ5_K, DType::kQ2_K, DType::kQ3_K, DType::kIQ4_NL, DType::kIQ4_XS};
  return std::ranges::find(kRead, t) != std::end(kRead);
}
static_assert(std::ranges::all_of(quant::kFormats,
                                  [](const quant::FormatRow& f) {
                                    return tile_format(f.type) != TileFormat::kBf16 || has_element(f.type);
                                  }),
              "a type has neither tiles of its own nor a case in element()");

// One element, by quant::decode_row's rules and roundings: for types that are packed as bf16.
__device__ float element(DType type, const uint8_t* row, int64_t c) {
  const int i = static_cast<int>(c % 32);
  switch (type) {
    case DType::kF32:
      return __uint_as_float(load_u32(row + 4 * c));
    case DType::kF16:
      return load_half(row + 2 * c);
    case DType::kBF16:
      return __uint_as_float(load_u16(row + 2 * c) << 16);
    case DType::kQ4_0: {
      const uint8_t* b = row + c / 32 * 18;
      return __fmul_rn(load_half(b), static_cast<float>(static_cast<int>(split_nibble(b + 2, i)) - 8));
    }
    case DType::kQ4_1: {
      const uint8_t* b = row + c / 32 * 20;
      return __fadd_rn(__fmul_rn(load_half(b), static_cast<float>(split_nibble(b + 4, i))), load_half(b + 2));
    }
    case DType::kQ5_0: {
      const uint8_t* b = row + c / 32 * 22;
      const uint32_t q = split_nibble(b + 6, i) | (load_u32(b + 2) >> i & 1u) << 4;
      return __fmul_rn(load_half(b), static_cast<float>(static_cast<int>(q) - 16));
    }
    case DType::kQ5_1: {
      const uint8_t* b = row + c / 32 * 24;
      const uint32_t q = split_nibble(b + 8, i) | (load_u32(b + 4) >> i & 1u) << 4;
      return __fadd_rn(__fmul_rn(load_half(b), static_cast<float>(q)), load_half(b + 2));
    }
    case DType::kQ5_K: {
      const uint8_t* b = row + c / 256 * 176;
      const int k = static_cast<int>(c % 256);
      const ScaleMin s = k_scale(b + 4, k / 32);
      const uint32_t q = k_nibble(b + 48, k) | (b[16 + k % 32] >> (k / 32) & 1u) << 4;
      const float scale = __fmul_rn(load_half(b), static_cast<float>(s.scale));
      const float min = __fmul_rn(load_half(b + 2), static_cast<float>(s.min));
      return __fadd_rn(__fmul_rn(scale, static_cast<float>(q)), -min);
    }
    case DType::kQ2_K: {
      const uint8_t* b = row + c / 256 * 84;
      const int k = static_cast<int>(c % 256);
      const uint32_t both = b[k / 16];
      const float scale = __fmul_rn(load_half(b + 80), static_cast<float>(both & 15u));
      const float min = __fmul_rn(load_half(b + 82), static_cast<float>(both >> 4));
      return __fadd_rn(__fmul_rn(scale, static_cast<float>(k_crumb(b + 16, k))), -min);
    }
    case DType::kQ3_K: {
      const uint8_t* b = row + c / 256 * 110;
      const int k = static_cast<int>(c % 256);
      const uint32_t q = k_crumb(b + 32, k) | (b[k % 32] >> (k / 32) & 1u) << 2;
      const float scale = __fmul_rn(load_half(b + 108), static_cast<float>(q3_scale(b + 96, k / 16)));
      return __fmul_rn(scale, static_cast<float>(static_cast<int>(q) - 4));
    }
    case DType::kIQ4_NL: {
      const uint8_t* b = row + c / 32 * 18;
      return __fmul_rn(load_half(b), iq4_value(split_nibble(b + 2, i)));
    }
    case DType::kIQ4_XS: {
      const uint8_t* b = row + c / 256 * 136;
      const int j = static_cast<int>(c % 256) / 32;
      const float scale = __fmul_rn(load_half(b), static_cast<float>(iq4_xs_scale(b, j)));
      return __fmul_rn(scale, iq4_value(split_nibble(b + 8 + 16 * j, i)));
    }
    default:
      return __uint_as_float(0x7fc00000u);
  }
}

__device__ uint32_t bf16_bits(float x) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(x));
}

// Of element e (0 ... 7) of a lane's step: a[e / 2], column e % 2 of the pair.
__device__ int element_row(int e, int lane) {
  return lane / 4 + ((e / 2) & 1) * 8;
}
__device__ int element_col(int e, int lane, int step) {
  return step * 16 + lane % 4 * 2 + (e & 1) + (e >= 4 ? 8 : 0);
}

// Types that bf16 numbers hold: the first plane is the value rounded (one plane) or cut (several), the next what is
// left.
template <int kPlanes>
__device__ void pack_plain(const TileRows& t, int lane, uint8_t* out) {
  for (int step = 0; step < 4; ++step) {
    uint32_t a[kPlanes][4] = {};
    for (int e = 0; e < 8; ++e) {
      const uint8_t* row = t.row(element_row(e, lane));
      const int32_t col = t.col(element_col(e, lane, step));
      float rest = row == nullptr || col >= t.s.cols ? 0.0f : element(t.s.dtype, row, col);
      for (int p = 0; p < kPlanes; ++p) {
        const uint32_t bits = kPlanes == 1 ? bf16_bits(rest) : __float_as_uint(rest) >> 16;
        a[p][e / 2] |= bits << (16 * (e & 1));
        // Nothing is left of an infinity or a NaN (one whose upper half alone would be an infinity stays that).
        rest = isfinite(rest) ? rest - __uint_as_float(bits << 16) : 0.0f;
      }
    }
    for (int p = 0; p < kPlanes; ++p)
      *reinterpret_cast<uint4*>(out + p * 2048 + step * 512 + lane * 16) =
          make_uint4(a[p][0], a[p][1], a[p][2], a[p][3]);
  }
}

// The bits of a code in the word of its step (decode.cuh), by the element of the lane's fragment that it is: of
// register element / 2, an even one in the lower half.
__device__ uint32_t place_e2m1(uint32_t code, int element) {
  const uint32_t sign = code >> 3, m = code & 7u;
  const int half = 16 * (element & 1), other = 16 - half;
  switch (element / 2) {
    case 0:
      return (sign << 15 | m << 6) << half;
    case 1:
      return (sign << 11 | m << 2) << half;
    case 2:
      return m << 12 << half | sign << 5 << other;
    default:
      return (sign << 9 | m >> 2 << 10 | (m & 3u)) << half;
  }
}

// 8 (x + 22) + m for the scale (1 + m / 8) 2^x; 0 for zero (and the NaN code, which decodes to zero).
__device__ uint32_t normal_ue4m3(uint32_t code) {
  code &= 0x7fu;
  if (code == 0 || code == 0x7f) return 0;
  if (code >= 8) return code + 8 * 15;                                         // x = (code >> 3) - 7
  const auto top = static_cast<uint32_t>(31 - __clz(static_cast<int>(code)));  // m 2^-9, m < 8
  return 8 * (top + 13) + ((code << (3 - top)) & 7u);
}
// Where Decoder<kNvfp4> looks for the scale of a step.
__device__ uint32_t place_ue4m3(uint32_t byte, int step) {
  const uint32_t half = step % 2 == 0 ? byte << 4 : (byte & 15u) << 12 | byte >> 4;
  return half << (step / 2 * 16);
}

__device__ void pack_nvfp4(const TileRows& t, int lane, uint8_t* out) {
  const auto block = [&](int r) {
    const uint8_t* row = t.row(r);
    return row == nullptr ? nullptr : row + static_cast<int64_t>(t.col_tile) * 36;
  };
  uint32_t words[4] = {};
  for (int step = 0; step < 4; ++step)
    for (int e = 0; e < 8; ++e) {
      const uint8_t* b = block(element_row(e, lane));
      if (b == nullptr) continue;
      const int i = element_col(e, lane, 0);
      const uint32_t byte = b[4 + 8 * step + (i & 7)];
      uint32_t code = i < 8 ? byte & 15u : byte >> 4;
      if (normal_ue4m3(b[step]) == 0) code &= 8u;
      words[step] |= place_e2m1(code, e);
    }
  *reinterpret_cast<uint4*>(out + lane * 16) = make_uint4(words[0], words[1], words[2], words[3]);
  if (lane >= 16) return;
  const uint8_t* b = block(lane);
  uint32_t scales = 0;
  for (int step = 0; b != nullptr && step < 4; ++step) scales |= place_ue4m3(normal_ue4m3(b[step]), step);
  *reinterpret_cast<uint32_t*>(out + 512 + lane % 8 * 8 + lane / 8 * 4) = scales;
}

// A block of 32 columns of a tile's row; null beyond the matrix.
__device__ const uint8_t* block32(const TileRows& t, int r, int half, int bytes) {
  const uint8_t* row = t.row(r);
  if (row == nullptr || t.col(32 * half) >= t.s.cols) return nullptr;
  return row + (static_cast<int64_t>(t.col_tile) * 2 + half) * bytes;
}

__device__ void pack_mxfp4(const TileRows& t, int lane, uint8_t* out) {
  uint32_t words[4] = {};
  for (int step = 0; step < 4; ++step)
    for (int e = 0; e < 8; ++e) {
      const uint8_t* b = block32(t, element_row(e, lane), step / 2, 17);
      if (b == nullptr) continue;
      words[step] |= place_e2m1(split_nibble(b + 1, element_col(e, lane, step) % 32), e);
    }
  *reinterpret_cast<uint4*>(out + lane * 16) = make_uint4(words[0], words[1], words[2], words[3]);
  const uint8_t* b = block32(t, lane / 2, lane & 1, 17);  // 16 rows x 2 halves
  out[512 + lane / 2 % 8 * 4 + lane / 16 * 2 + (lane & 1)] =
      static_cast<uint8_t>(b == nullptr ? 0 : min(b[0] + 119, 255));
}

__device__ void pack_q8_0(const TileRows& t, int lane, uint8_t* out) {
  for (int step = 0; step < 4; ++step) {
    uint32_t words[2] = {};
    for (int e = 0; e < 8; ++e) {
      const uint8_t* b = block32(t, element_row(e, lane), step / 2, 34);
      const uint32_t code = b == nullptr ? 128u : b[2 + element_col(e, lane, step) % 32] ^ 128u;
      words[e / 4] |= code << (8 * (e % 4));
    }
    *reinterpret_cast<uint2*>(out + step / 2 * 512 + lane * 16 + step % 2 * 8) = make_uint2(words[0], words[1]);
  }
  const uint8_t* b = block32(t, lane / 2, lane & 1, 34);
  *reinterpret_cast<uint16_t*>(out + 1024 + lane / 2 % 8 * 8 + lane / 16 * 4 + (lane & 1) * 2) =
      static_cast<uint16_t>(b == nullptr ? 0 : load_u16(b));
}

__device__ void pack_fp8(const TileRows& t, int lane, uint8_t* out) {
  const auto block = [&](int r) {  // of 128 columns, which the tile is a half of
    const uint8_t* row = t.row(r);
    return row == nullptr ? nullptr : row + static_cast<int64_t>(t.col_tile / 2) * 132;
  };
  for (int step = 0; step < 4; ++step) {
    uint32_t words[2] = {};
    for (int e = 0; e < 8; ++e) {
      const uint8_t* b = block(element_row(e, lane));
      const uint32_t code = b == nullptr ? 0 : b[4 + t.col_tile % 2 * kTileCols + element_col(e, lane, step)];
      words[e / 4] |= code << (8 * (e % 4));
    }
    *reinterpret_cast<uint2*>(out + step / 2 * 512 + lane * 16 + step % 2 * 8) = make_uint2(words[0], words[1]);
  }
  if (lane >= 16) return;
  const uint8_t* b = block(lane);
  *reinterpret_cast<float*>(out + 1024 + lane % 8 * 8 + lane / 8 * 4) =
      b == nullptr ? 0.0f : 256.0f * __uint_as_float(load_u32(b));
}

// The super-block of 256 columns that a tile is a quarter of.
__device__ const uint8_t* block256(const TileRows& t, int r, int bytes) {
  const uint8_t* row = t.row(r);
  return row == nullptr ? nullptr : row + static_cast<int64_t>(t.col_tile / 4) * bytes;
}

__device__ void pack_q4_k(const TileRows& t, int lane, uint8_t* out) {
  const int first = t.col_tile % 4 * 64;  // of the super-block's columns
  uint32_t words[4] = {};
  for (int step = 0; step < 4; ++step)
    for (int e = 0; e < 8; ++e) {
      const uint8_t* b = block256(t, element_row(e, lane), 144);
      if (b != nullptr) words[step] |= k_nibble(b + 16, first + element_col(e, lane, step)) << (4 * e);
    }
  *reinterpret_cast<uint4*>(out + lane * 16) = make_uint4(words[0], words[1], words[2], words[3]);
  if (lane >= 16) return;
  const uint8_t* b = block256(t, lane, 144);
  uint32_t d = 0, scales = 0;
  if (b != nullptr) {
    const ScaleMin s0 = k_scale(b + 4, first / 32), s1 = k_scale(b + 4, first / 32 + 1);
    d = load_u32(b);
    scales = s0.scale | s0.min << 8 | s1.scale << 16 | s1.min << 24;
  }
  auto* row = reinterpret_cast<uint32_t*>(out + 512 + lane % 8 * 16);
  row[lane / 8] = d;
  row[2 + lane / 8] = scales;
}

__device__ uint32_t q6_code(const uint8_t* b, int i) {
  const int h = i / 128, g = i % 128 / 32, l = i % 32;
  const uint32_t byte = b[64 * h + 32 * (g & 1) + l];
  return (g < 2 ? byte & 15u : byte >> 4) | (b[128 + 32 * h + l] >> (2 * g) & 3u) << 4;
}

__device__ void pack_q6_k(const TileRows& t, int lane, uint8_t* out) {
  const int first = t.col_tile % 4 * 64;
  uint32_t low[4] = {}, high[2] = {};
  for (int step = 0; step < 4; ++step)
    for (int e = 0; e < 8; ++e) {
      const uint8_t* b = block256(t, element_row(e, lane), 210);
      if (b == nullptr) continue;
      const uint32_t q = q6_code(b, first + element_col(e, lane, step));
      low[step] |= (q & 15u) << (4 * e);
      high[step / 2] |= (q >> 4) << (16 * (step % 2) + 2 * e);
    }
  *reinterpret_cast<uint4*>(out + lane * 16) = make_uint4(low[0], low[1], low[2], low[3]);
  *reinterpret_cast<uint2*>(out + 512 + lane * 8) = make_uint2(high[0], high[1]);
  if (lane >= 16) return;
  const uint8_t* b = block256(t, lane, 210);
  uint32_t scales = 0, d = 0;
  if (b != nullptr) {
    for (int j = 0; j < 4; ++j) scales |= static_cast<uint32_t>(b[192 + first / 16 + j]) << (8 * j);
    d = load_u16(b + 208);
  }
  uint8_t* row = out + 768 + lane % 8 * 16;
  reinterpret_cast<uint32_t*>(row)[lane / 8] = scales;
  reinterpret_cast<uint16_t*>(row + 8)[lane / 8] = static_cast<uint16_t>(d);
  reinterpret_cast<uint16_t*>(row + 12)[lane / 8] = 0;
}

struct PackKernel {
  Source source;
  uint8_t* packed;
  int64_t expert_bytes;
  int32_t row_tiles, col_tiles, first_row_tile, first_expert, experts;
};

template <TileFormat F>
__global__ void __launch_bounds__(128) pack_kernel(const PackKernel k) {
  const int lane = threadIdx.x % 32;
  const int64_t tiles = static_cast<int64_t>(k.experts) * k.row_tiles * k.col_tiles;
  for (int64_t i = blockIdx.x * 4LL + threadIdx.x / 32; i < tiles; i += gridDim.x * 4LL) {
    const auto col_tile = static_cast<int32_t>(i % k.col_tiles);
    const auto row_tile = static_cast<int32_t>(i / k.col_tiles % k.row_tiles);
    const int64_t expert = i / k.col_tiles / k.row_tiles;
    const TileRows t{k.source, expert, row_tile, col_tile};
    uint8_t* out = k.packed + (k.first_expert + expert) * k.expert_bytes +
                   (static_cast<int64_t>(k.first_row_tile + row_tile) * k.col_tiles + col_tile) * tile_bytes(F);
    if constexpr (F == TileFormat::kBf16) pack_plain<1>(t, lane, out);
    if constexpr (F == TileFormat::kBf16x2) pack_plain<2>(t, lane, out);
    if constexpr (F == TileFormat::kBf16x3) pack_plain<3>(t, lane, out);
    if constexpr (F == TileFormat::kQ8_0) pack_q8_0(t, lane, out);
    if constexpr (F == TileFormat::kQ4_K) pack_q4_k(t, lane, out);
    if constexpr (F == TileFormat::kQ6_K) pack_q6_k(t, lane, out);
    if constexpr (F == TileFormat::kMxfp4) pack_mxfp4(t, lane, out);
    if constexpr (F == TileFormat::kNvfp4) pack_nvfp4(t, lane, out);
    if constexpr (F == TileFormat::kFp8) pack_fp8(t, lane, out);
  }
}

// One warp a tile; what the products see, through the same decoders.
template <TileFormat F>
__global__ void __launch_bounds__(32) unpack_kernel(const UnpackParams p) {
  using D = Decoder<F>;
  __shared__ __align__(16) uint8_t tile[D::kTileBytes];
  const int lane = threadIdx.x, row_tile = blockIdx.x, second = p.weight.paired ? p.second : 0;
  const int32_t rows_per_tile = p.weight.paired ? 8 : 16;
  for (int32_t col_tile = 0; col_tile < p.weight.col_tiles(); ++col_tile) {
    const auto* source = reinterpret_cast<const uint8_t*>(p.weight.data) + p.expert * p.weight.expert_bytes() +
                         (static_cast<int64_t>(row_tile) * p.weight.col_tiles() + col_tile) * D::kTileBytes;
    __syncwarp();
    for (int i = lane * 16; i < D::kTileBytes; i += 512)
      *reinterpret_cast<uint4*>(tile + i) = *reinterpret_cast<const uint4*>(source + i);
    __syncwarp();
    const typename D::Regs regs = D::load(shared_address(tile), lane);
    const auto put = [&](int step, int plane, const uint32_t(&a)[4]) {
      for (int e = 0; e < 8; ++e) {
        const int r = element_row(e, lane);
        if (p.weight.paired && r / 8 != second) continue;
        const int64_t row = static_cast<int64_t>(row_tile) * rows_per_tile + r % rows_per_tile;
        const int64_t col = static_cast<int64_t>(col_tile) * kTileCols + element_col(e, lane, step);
        if (row >= p.weight.rows || col >= p.weight.cols) continue;
        const float x = __uint_as_float((e & 1) != 0 ? a[e / 2] & 0xffff0000u : a[e / 2] << 16) * D::kUnit;
        float* out = p.out + row * p.weight.cols + col;
        *out = plane == 0 ? x : *out + x;
      }
    };
    uint32_t a[4];
#define QUIRE_UNPACK_STEP(J)                                                                 \
  D::template fragment<true, J, 0>(regs, a), put(J, 0, a);                                   \
  if constexpr (D::kPlanes > 1)                                                              \
    D::template fragment<true, J, D::kPlanes - 1 - (D::kPlanes > 2)>(regs, a), put(J, 1, a); \
  if constexpr (D::kPlanes > 2) D::template fragment<true, J, D::kPlanes - 1>(regs, a), put(J, 2, a);
    QUIRE_UNPACK_STEP(0)
    QUIRE_UNPACK_STEP(1)
    QUIRE_UNPACK_STEP(2)
    QUIRE_UNPACK_STEP(3)
#undef QUIRE_UNPACK_STEP
  }
}

Error misfit(std::string_view what) {
  return {Fault::kBug, fmt::format("packing a weight: {}", what)};
}

}  // namespace

Status launch_pack(cudaStream_t stream, const PackParams& p) {
  const PackedWeight& d = p.destination;
  const int32_t per_tile = d.paired ? 8 : kTileRows;
  const int32_t row_tiles = (p.rows + per_tile - 1) / per_tile;
  if (d.format != tile_format(p.dtype)) return misfit("the destination has another format");
  if (d.cols != p.cols || p.cols % dtype_info(p.dtype).block_elems != 0) return misfit("columns");
  if (p.first_row_tile < 0 || p.first_row_tile + row_tiles > d.row_tiles()) return misfit("rows");
  if (p.first_expert < 0 || p.first_expert + p.experts > d.experts) return misfit("experts");
  if (d.paired != (p.source2 != nullptr)) return misfit("gate and up come together");
  if (p.rows <= 0 || p.experts <= 0) return {};
  PackKernel k{};
  k.source = {p.dtype,
              reinterpret_cast<const uint8_t*>(p.source),
              reinterpret_cast<const uint8_t*>(p.source2),
              dtype_bytes(p.dtype, p.cols),
              p.source_expert_rows == 0 ? p.rows : p.source_expert_rows,
              p.rows,
              p.cols,
              d.paired};
  k.packed = reinterpret_cast<uint8_t*>(p.packed);
  k.expert_bytes = d.expert_bytes();
  k.row_tiles = row_tiles;
  k.col_tiles = d.col_tiles();
  k.first_row_tile = p.first_row_tile;
  k.first_expert = p.first_expert;
  k.experts = p.experts;
  const int64_t tiles = static_cast<int64_t>(p.experts) * row_tiles * k.col_tiles;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>((tiles + 3) / 4, 65536));
  return with_format(d.format, [&]<TileFormat F>() -> Status {
    pack_kernel<F><<<blocks, 128, 0, stream>>>(k);
    return cuda::check_launch("pack_kernel");
  });
}

Status launch_unpack(cudaStream_t stream, const UnpackParams& p) {
  if (p.weight.row_tiles() == 0) return {};
  return with_format(p.weight.format, [&]<TileFormat F>() -> Status {
    unpack_kernel<F><<<static_cast<unsigned>(p.weight.row_tiles()), 32, 0, stream>>>(p);
    return cuda::check_launch("unpack_kernel");
  });
}

}  // namespace quire::gemm
