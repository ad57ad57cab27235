// Where a KV cache on CUDA keeps what: read by the kernels, by tests, and by whoever moves blocks about.
#pragma once

#include <cstdint>

#include "core/float.h"
#include "ops/segments.h"

namespace quire::cuda {

// The cache of one layer: for block b, `k + b * block_stride` is [kv_heads][16 tokens x d] of keys, and `v` likewise
// of values, bf16. A block holds all layers one after the other (block_stride = layers * 2 * kv_heads * 16 * d, v = k +
// kv_heads * 16 * d), so that copying or swapping a block is one contiguous copy.
//
// Within a block and head the 16 x d elements (d a multiple of 64) are slabs of 64 columns; a slab is 16 rows of 128
// bytes, one per token, and the eight 16-byte chunks of a row stand in the order c ^ (token % 8). That is the
// 128-byte swizzle that wgmma expects of shared memory and that ldmatrix reads without bank conflicts, so a plain
// linear copy of whole 2 KiB slabs (cp.async or cp.async.bulk, no tensor map) is all that kernels need. The first n
// tokens of a slab are its first 128 n bytes.
struct KvCache {
  bf16* k = nullptr;
  bf16* v = nullptr;
  int64_t block_stride = 0;  // elements
};

inline constexpr int kSlabColumns = 64;
inline constexpr int kSlabElems = kBlockTokens * kSlabColumns;

// Element of token t (0 ... 15) and column c (0 ... d - 1) within a block and head: the same for keys and values.
constexpr int kv_offset(int t, int c) {
  const int slab = c / kSlabColumns, chunk = c % kSlabColumns / 8;
  return slab * kSlabElems + t * kSlabColumns + (chunk ^ (t % 8)) * 8 + c % 8;
}

}  // namespace quire::cuda
