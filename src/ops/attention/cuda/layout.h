// Where a KV cache on CUDA keeps what: read by the kernels, by tests, and by whoever moves blocks about.
#pragma once

#include <cstdint>

#include "core/float.h"
#include "ops/segments.h"

namespace quire::cuda {

enum class KvFormat : uint8_t { kBf16, kE4m3 };

// Bytes of keys, or of values, of a block and head: 16 x d elements, and of E4M3 the scales of its 16 tokens after them
// (ops/attention/scale.h).
constexpr int kv_head_bytes(KvFormat f, int d) {
  return kBlockTokens * (f == KvFormat::kBf16 ? 2 * d : d + 1);
}

// The cache of one layer: for block b, `k + b * block_bytes` is [kv_heads][kv_head_bytes] of keys, and `v` likewise of
// values. A block holds all layers one after the other, so that copying or swapping a block is one contiguous copy. All
// addresses are multiples of 16.
//
// Within a block and head the 16 x d elements (d a multiple of 64) are slabs of 64 columns. bf16: a slab is 16 rows of
// 128 bytes, one per token, and the eight 16-byte chunks of a row stand in the order c ^ (token % 8). That is the
// 128-byte swizzle that wgmma expects of shared memory and that ldmatrix reads without bank conflicts, so a plain
// linear copy of whole 2 KiB slabs (cp.async or cp.async.bulk, no tensor map) is all that kernels need. The first n
// tokens of a slab are its first 128 n bytes.
//
// E4M3: a slab is 16 rows of 64 bytes, whose four chunks stand in the order c ^ (token / 2 % 4): free of conflicts for
// ldmatrix too. A chunk holds 16 columns in the order 0, 8, 1, 9, ..., 7, 15: as a matrix of 16-bit elements it is
// loaded as one of eight columns, plain or transposed, and the bytes of a register then are two registers of the
// operand that bf16 would be loaded to (widen.cuh).
struct KvCache {
  void* k = nullptr;
  void* v = nullptr;
  int64_t block_bytes = 0;
  KvFormat format = KvFormat::kBf16;
};

inline constexpr int kSlabColumns = 64;
inline constexpr int kSlabElems = kBlockTokens * kSlabColumns;
inline constexpr int kChunkColumns = 16;  // of E4M3

// Element of token t (0 ... 15) and column c (0 ... d - 1) within a block and head: the same for keys and values. bf16:
constexpr int kv_offset(int t, int c) {
  const int slab = c / kSlabColumns, chunk = c % kSlabColumns / 8;
  return slab * kSlabElems + t * kSlabColumns + (chunk ^ (t % 8)) * 8 + c % 8;
}
// E4M3: where the chunk of column c begins, and the column of byte i of a chunk.
constexpr int kv_chunk_offset(int t, int c) {
  const int slab = c / kSlabColumns, chunk = c % kSlabColumns / kChunkColumns;
  return slab * kSlabElems + t * kSlabColumns + (chunk ^ (t / 2 % 4)) * kChunkColumns;
}
constexpr int kv_chunk_column(int i) {
  return i / 2 + i % 2 * 8;
}

}  // namespace quire::cuda
