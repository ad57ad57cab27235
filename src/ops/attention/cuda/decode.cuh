// What the two kernels of decode attention share: the shape of a block's work, and where partial results lie.
#pragma once

#include "ops/attention/cuda/attention.h"
#include "ops/attention/cuda/ptx.cuh"
#include "ops/attention/cuda/work.cuh"

namespace quire::cuda::decode {

inline constexpr float kLog2e = 1.4426950408889634f;

// kTiles: how many tiles of eight query rows are computed together from one read of the keys. kStages: blocks of keys
// that a warp has or has asked for. A stage holds keys and values of a block, and in the end a warp's sums of a tile.
template <int D, int kTiles, KvFormat kFormat, int kStageCount>
struct Shape {
  static constexpr int kWarps = D > 256 ? 2 : 4;  // of a block: a stage of heads of 512 is 32 KiB
  static constexpr int kStages = kStageCount;
  static constexpr int kBlockBytes = kv_head_bytes(kFormat, D);          // K or V of a block and head
  static constexpr int kRowChunks = kFormat == KvFormat::kBf16 ? 8 : 4;  // of 16 bytes, of a token in a slab
  static constexpr int kRows = 8 * kTiles;
  static constexpr int kSums = 8 * D;  // of a tile
  static constexpr int kStageBytes = (2 * kBlockBytes + 127) / 128 * 128;
  // Widening takes instructions: what shared memory E4M3 saves goes to more blocks on a multiprocessor, not to longer
  // rings.
  static constexpr int kResident = kFormat == KvFormat::kBf16 ? 1 : (D >= 256 ? 3 : 4) - (kTiles - 1);
  static constexpr int kRingBytes = kWarps * kStages * kStageBytes;
  static constexpr int kQueriesAt = kRingBytes, kStatsAt = kQueriesAt + kRows * D * 2;
  static constexpr int kFirstAt = kStatsAt + kWarps * kRows * 8;
  static_assert(kSums * 4 <= kStageBytes, "a warp leaves its sums in a stage");
  static constexpr int shared_bytes(int segments) {
    return kFirstAt + (segments + 1) * static_cast<int>(sizeof(int32_t));
  }
};

// What a launch computes. Partial results of part p, KV head h and row tile t, item i = (p * kv_heads + h) * row_tiles
// + t:
//   sums [i][kTiles][D][8 rows]   values weighted by 2^(score - max)
//   stats [i][kTiles][8 rows]     (max, sum of weights), scores in units of log2; max = -infinity: no key for that row
struct Job {
  AttentionParams a;
  int row_tiles;      // groups of kRows rows of a segment and KV head
  int64_t max_items;  // room in the workspace
  float* sums;
  float2* stats;
};

// The part in which the window of a segment's first row begins.
__device__ inline int first_part(const Segment& s, int window) {
  return window == 0 ? 0 : max(0, s.position + 1 - window) / kPartKeys;
}
// How many parts there are from that on.
__device__ inline int parts_of(const Segment& s, int window) {
  return s.count > 0 ? (s.position + s.count + kPartKeys - 1) / kPartKeys - first_part(s, window) : 0;
}

}  // namespace quire::cuda::decode
