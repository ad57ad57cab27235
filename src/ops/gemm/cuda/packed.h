// How weights lie in device memory for every kernel of the GEMM family.
//
// A matrix is cut into tiles of 16 rows x 64 columns. A tile holds its codes in the order in which the lanes of a warp
// hold the A operand of mma.m16n8k16 (and each warp of a warpgroup that of wgmma with A in registers), four steps of
// 16 columns, and beside them the scales of its blocks; decode.cuh says how for each format. Tiles follow each other
// along the columns, then the rows, then the experts, so 16 whole rows are contiguous.
//
// Rows are padded to tiles with zeros, columns too. A *paired* weight holds two matrices of equal shape, gate and up:
// rows 0-7 of a tile are the gate's, rows 8-15 the up's of the same outputs, so that the lane that has the one has the
// other and SwiGLU needs no exchange.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

namespace quire::gemm {

enum class TileFormat : uint8_t {
  kBf16,    // as it is; also every type without a format of its own, rounded to bf16
  kBf16x2,  // F16, as the exact sum of two bf16
  kBf16x3,  // F32, as the exact sum of three bf16 (routers: their logits decide, so they get all bits)
  kQ8_0,
  kQ4_K,
  kQ6_K,
  kMxfp4,
  kNvfp4,
  kFp8,
};

inline constexpr int kTileRows = 16, kTileCols = 64;
inline constexpr int kMaxKSlices = 64;

constexpr int tile_bytes(TileFormat f) {
  switch (f) {
    case TileFormat::kBf16:
      return 2048;
    case TileFormat::kBf16x2:
      return 2 * 2048;
    case TileFormat::kBf16x3:
      return 3 * 2048;
    case TileFormat::kQ8_0:
      return 1024 + 64;
    case TileFormat::kQ4_K:
      return 512 + 128;
    case TileFormat::kQ6_K:
      return 512 + 256 + 128;
    case TileFormat::kMxfp4:
      return 512 + 32;
    case TileFormat::kNvfp4:
      return 512 + 64;
    case TileFormat::kFp8:
      return 1024 + 64;
  }
  return 0;
}

// 4-bit floats: the fewest bytes to copy, and much to decode.
constexpr bool is_fp4(TileFormat f) {
  return f == TileFormat::kMxfp4 || f == TileFormat::kNvfp4;
}

// What a decoder's numbers are to be multiplied by.
constexpr float tile_unit(TileFormat f) {
  return is_fp4(f) ? 128.0f : 1.0f;
}

// The format that a file's type is packed to.
constexpr TileFormat tile_format(DType t) {
  switch (t) {
    case DType::kF32:
      return TileFormat::kBf16x3;
    case DType::kF16:
      return TileFormat::kBf16x2;
    case DType::kQ8_0:
      return TileFormat::kQ8_0;
    case DType::kQ4_K:
      return TileFormat::kQ4_K;
    case DType::kQ6_K:
      return TileFormat::kQ6_K;
    case DType::kMXFP4:
      return TileFormat::kMxfp4;
    case DType::kNVFP4:
      return TileFormat::kNvfp4;
    case DType::kFP8:
      return TileFormat::kFp8;
    default:
      return TileFormat::kBf16;
  }
}

// Columns that one float32 accumulator adds up, a multiple of 64: K slices are added in ascending order by every
// kernel, so this is what the bits of a product depend on. It follows from the weight's shape alone. What was measured:
// - Many rows keep all multiprocessors busy without cutting K, and one accumulator leaves registers for wider tiles.
// - Fewer are cut for the sake of few tokens: into about so many pieces of work, with blocks of 128 rows, that these
//   keep all multiprocessors busy, and where there are many columns finer, because streams then pay for long K slices.
// - Experts are cut for one token's sake, whose kernel shares a row tile's K slices among warps.
constexpr int k_slice_cols(int64_t row_tiles, int64_t cols, bool experts) {
  int64_t k_slice = row_tiles >= 512 ? 2048 : row_tiles > 32 ? 512 : 256;
  if (!experts && row_tiles >= 640) return static_cast<int>((cols + 511) / 512 * 512);
  if (!experts && row_tiles >= 256 && row_tiles < 512) {
    constexpr int64_t kPieces = 120;
    k_slice = cols > 8192 ? 1024 : 2048;
    while (k_slice > 512 && (cols + k_slice - 1) / k_slice * ((row_tiles + 7) / 8) < kPieces) k_slice /= 2;
  }
  while (k_slice * kMaxKSlices < cols) k_slice *= 2;
  return static_cast<int>(k_slice);
}

// A packed weight in device memory. y = scale[e] * W[e] x.
struct PackedWeight {
  TileFormat format = TileFormat::kBf16;
  bool paired = false;              // gate and up
  const std::byte* data = nullptr;  // device, aligned to 256 bytes; bytes() of them
  int32_t rows = 0;                 // outputs: of one expert, and of one of the two matrices if paired
  int32_t cols = 0;                 // inputs
  int32_t experts = 1;
  int32_t k_slice = 0;  // columns a K slice; 0: k_slice_cols() of all experts' tiles

  constexpr int32_t row_tiles() const { return paired ? (rows + 7) / 8 : (rows + 15) / 16; }
  constexpr int32_t col_tiles() const { return (cols + kTileCols - 1) / kTileCols; }
  constexpr int64_t expert_bytes() const {
    return static_cast<int64_t>(row_tiles()) * col_tiles() * tile_bytes(format);
  }
  constexpr int64_t bytes() const { return expert_bytes() * experts; }
  constexpr int32_t k_slice_columns() const {
    return k_slice != 0 ? k_slice : k_slice_cols(static_cast<int64_t>(row_tiles()) * experts, cols, experts > 1);
  }
  constexpr int32_t k_slices() const { return (cols + k_slice_columns() - 1) / k_slice_columns(); }
  constexpr bool empty() const { return data == nullptr; }
};

}  // namespace quire::gemm
