// What the kernels of prompt attention share: which rows a block computes, and a thread's part of an online softmax
// over tiles of keys.
#pragma once

#include <cuda_runtime.h>

#include <climits>

#include "ops/attention/cuda/attention.h"
#include "ops/attention/cuda/ptx.cuh"
#include "ops/attention/cuda/work.cuh"

namespace quire::cuda::prefill {

inline constexpr int kTileRows = 128;  // (token, query head) of one segment and KV head: those of a block
inline constexpr float kLog2e = 1.4426950408889634f;

// What the block computes.
struct Tile {
  Segment segment;
  const int32_t* table;
  int kv_head, first_row,
      rows;                   // rows of the segment and KV head: (token, head); this block's begin at first_row
  int group, end, key_tiles;  // the segment's end position; how many tiles of keys its last row needs
  // With a window all positions, and the table, count from the first tile that the first row needs, `skipped` from the
  // sequence's beginning.
  int skipped;
};

// Where the keys of a token of the tile's segment end, where rows have ends of their own.
__device__ __forceinline__ int end_of(const AttentionParams& a, const Tile& t, int token) {
  return max(t.segment.position + token + 1, a.ends[t.segment.row + token] - t.skipped);
}

template <int kRows>
__device__ int tiles_of(const Segment& s, int group) {
  return (s.count * group + kRows - 1) / kRows;
}

// kRows: of a block.
template <int kTileKeys, int kRows, bool kEnds>
__device__ Tile find_tile(const AttentionParams& a, const int32_t* first, int work) {
  const int group = a.q_heads / a.kv_heads, prompts = a.segments.count - a.segments.decodes;
  const int tile = work / a.kv_heads, s = segment_of(first, prompts, tile), index = a.segments.decodes + s;
  Tile t;
  t.segment = a.segments.data[index];
  t.table = a.segments.tables + static_cast<int64_t>(index) * a.segments.pitch;
  t.kv_head = work % a.kv_heads;
  t.group = group;
  t.first_row = (tile - first[s]) * kRows;
  t.rows = t.segment.count * group;
  t.end = t.segment.position + t.segment.count;
  const int last = min(t.first_row + kRows, t.rows) - 1;
  t.skipped = 0;
  if (a.window > 0) {
    const int tiles = max(0, t.segment.position + t.first_row / group + 1 - a.window) / kTileKeys;
    t.segment.position -= tiles * kTileKeys;
    t.end -= tiles * kTileKeys;
    t.table += tiles * (kTileKeys / kBlockTokens);
    t.skipped = tiles * kTileKeys;
  }
  if constexpr (kEnds)
    t.key_tiles = (end_of(a, t, last / group) - 1) / kTileKeys + 1;
  else
    t.key_tiles = (t.segment.position + last / group) / kTileKeys + 1;
  return t;
}

// The work of this block, of a grid with room for that of all segments: -1 if there is none. Fills `first`, which has
// an entry for each prompt segment and one more. Tiles with the most keys come first, so that the last to finish are
// short.
template <int kRows = kTileRows>
__device__ int find_work(const AttentionParams& a, int32_t* first) {
  const int group = a.q_heads / a.kv_heads, prompts = a.segments.count - a.segments.decodes;
  list_work(a.segments.data + a.segments.decodes, prompts, first,
            [group](const Segment& s) { return tiles_of<kRows>(s, group); });
  return first[prompts] * a.kv_heads - 1 - static_cast<int>(blockIdx.x);
}

// Two rows of a thread: of products of 16 rows, rows lane / 4 and lane / 4 + 8 of the warp's 16, eight columns at a
// time as mma.sync and wgmma leave them: [4 i + 2 r + c] is row r, column 8 i + 2 (lane % 4) + c. Of the D columns of a
// head the thread's warp has kColumns, from `first_column` on. kEnds: rows have ends of their own.
template <int D, int kTileKeys, bool kEnds, int kColumns = D>
class TwoRows {
 public:
  static constexpr int kSteps = kTileKeys / kBlockTokens;

  // Within the tile: warp_row the first of the warp's 16 rows, group_row that of the rows whose products are made
  // together.
  __device__ __forceinline__ TwoRows(const AttentionParams& params, const Tile& tile, int group_row, int warp_row,
                                     int from_column = 0)
      : a(params), t(tile), lane(threadIdx.x % 32), first_column(from_column), unit(params.scale * kLog2e) {
    const int mine = warp_row + lane / 4;
    for (int i = 0; i < 2; ++i) {
      row[i] = t.first_row + mine + 8 * i;
      const int token = min(row[i], t.rows - 1) / t.group;
      position[i] = t.segment.position + token;
      if constexpr (kEnds) last[i] = end_of(params, t, token) - 1;
      max[i] = -INFINITY;
      total[i] = 0;
    }
    const int first_token = min(t.first_row + group_row, t.rows - 1) / t.group;
    if constexpr (kEnds)
      masked_from = end_of(params, t, first_token) / kTileKeys;
    else
      masked_from = (t.segment.position + first_token + 1) / kTileKeys;
    window = params.window > 0 ? params.window : INT_MAX;
    // Up to the tile in which the window of this thread's later row begins.
    cut_until = params.window > 0 ? (position[1] + 1 - window + kTileKeys - 1) / kTileKeys : 0;
  }

 protected:
  // Scores of tile j to weights 2^(score - max); alpha: what earlier weights are to be multiplied by.
  __device__ __forceinline__ void softmax(int j, float (&alpha)[2]) {
    if (j >= masked_from || j < cut_until) {
      const int key = j * kTileKeys + 2 * (lane % 4);
#pragma unroll
      for (int i = 0; i < kTileKeys / 2; ++i) {
        const int at = key + i / 4 * 8 + i % 2, below = position[i % 4 / 2] - at;  // how far the key is before the row
        if ((kEnds ? at > last[kEnds ? i % 4 / 2 : 0] : below < 0) || below >= window) score[i] = -INFINITY;
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float m = max[r];
#pragma unroll
      for (int i = 0; i < kTileKeys / 2; i += 4) m = fmaxf(m, fmaxf(score[i + 2 * r], score[i + 2 * r + 1]));
      m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
      m = fmaxf(m, __shfl_xor_sync(~0u, m, 2));
      const float known = m == -INFINITY ? 0.0f : m;  // the row's window begins in a later tile
      alpha[r] = exp2_approx(__fmul_rn(__fsub_rn(max[r], known), unit));
      const float base = __fmul_rn(known, unit);
      max[r] = m;
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kTileKeys / 2; i += 4) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float& s = score[i + 2 * r + c];
          s = exp2_approx(fmaf(s, unit, -base));
          sum += s;
        }
      }
      total[r] = fmaf(total[r], alpha[r], sum);
    }
  }

  __device__ __forceinline__ void pack() {
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
#pragma unroll
      for (int x = 0; x < 4; ++x) probability[i][x] = pack_bf16(score[8 * i + 2 * x], score[8 * i + 2 * x + 1]);
    }
  }

  __device__ __forceinline__ void store() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = total[r];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      if (row[r] >= t.rows) continue;
      const int64_t token = t.segment.row + row[r] / t.group;
      const int head = t.kv_head * t.group + row[r] % t.group, column = first_column + 2 * (lane % 4);
      bf16* to = a.out + token * a.out_stride + static_cast<int64_t>(head) * D + column;
      if (a.sinks != nullptr) sum += exp2_approx(fmaf(a.sinks[head], kLog2e, -__fmul_rn(max[r], unit)));
      const float inv = __fdividef(1.0f, sum);
      if (a.gate != nullptr) gate_row(r, a.gate + token * a.gate_stride + head * a.gate_head_stride + column);
#pragma unroll
      for (int i = 0; i < kColumns / 8; ++i)
        *reinterpret_cast<uint32_t*>(to + 8 * i) = pack_bf16(out[4 * i + 2 * r] * inv, out[4 * i + 2 * r + 1] * inv);
    }
  }

  // All of a row's gates are loaded before the first is used: one latency instead of kColumns / 8.
  __device__ __forceinline__ void gate_row(int r, const bf16* gate) {
    uint32_t g[kColumns / 8];
#pragma unroll
    for (int i = 0; i < kColumns / 8; ++i) g[i] = *reinterpret_cast<const uint32_t*>(gate + 8 * i);
#pragma unroll
    for (int i = 0; i < kColumns / 8; ++i) {
      out[4 * i + 2 * r] *= sigmoid(low_bf16(g[i]));
      out[4 * i + 2 * r + 1] *= sigmoid(high_bf16(g[i]));
    }
  }

  const AttentionParams& a;
  const Tile& t;
  const int lane, first_column;
  const float unit;
  int row[2], position[2], masked_from, cut_until, window;
  int last[kEnds ? 2 : 1];  // positions that the rows look at, with ends of their own
  float max[2], total[2], score[kTileKeys / 2], out[kColumns / 2];
  uint32_t probability[kSteps][4];
};

// How many blocks have room for the work of `rows` rows in the prompt segments of p.
inline int64_t most_tiles(const AttentionParams& p, int rows, int block_rows = kTileRows) {
  const int prompts = p.segments.count - p.segments.decodes;
  return (static_cast<int64_t>(rows) * (p.q_heads / p.kv_heads) / block_rows + prompts) * p.kv_heads;
}

}  // namespace quire::cuda::prefill
