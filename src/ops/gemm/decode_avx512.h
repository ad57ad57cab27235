// Weights decoded to bf16 tiles for the AMX and AVX-512 cores.
#pragma once

#include "ops/op.h"

namespace quire::gemm {

inline constexpr int64_t kDecodeChunk = 256;  // weights of a row: a multiple of every block

// Where decoded weights go, in elements: row r, columns 32 s ... 32 s + 31 at r * row + s * step.
struct DecodeLayout {
  int64_t row = 32;
  int64_t step = 16 * 32;  // by default tiles of 16 rows by 32 columns
};

// Decodes W[r][begin, begin + count) of `rows` <= 16 neighbouring rows, the first of which starts at `first`.
// out: in pieces of 32 columns as `layout` says, 64-byte aligned; columns past count become zero, rows past
// `rows` are left alone. begin is a multiple of the block and of 32, and so is count except at the end of the
// row.
using DecodeTiles = void (*)(const std::byte* first, int64_t row_bytes, int rows, int64_t begin, int64_t count,
                             uint16_t* out, DecodeLayout layout);

// A decoder for every type of quant::can_decode but F32 and F16, which do not fit bf16.
DecodeTiles find_decoder(DType type);

}  // namespace quire::gemm
