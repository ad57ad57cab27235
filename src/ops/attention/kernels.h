// Inside attention/: the kernels behind the two tables, and the walk that the fast ones share.
//
// A fast paged_attention kernel is one function over a RowTask: some consecutive tokens of one segment, for
// the query heads of one KV head. The walk over keys (walk.h) is compiled once per instruction set; planning
// and scratch memory are here, compiled for the baseline, and reach the kernel as plain pointers, so that no
// shared inline function is ever compiled with a wider instruction set than the machine may have.
#pragma once

#include <algorithm>

#include "ops/attention/attention.h"

namespace quire::attention {

// The sizes of a call, taken from its (already checked) tensors.
struct Heads {
  int64_t rows = 0;     // T
  int64_t q_heads = 0;  // H
  int64_t kv_heads = 0;
  int64_t d = 0;
  int64_t group() const { return q_heads / kv_heads; }  // query heads that share a KV head
};
template <class Args>
Heads heads_of(const Args& a) {
  return {a.q.dim(0), a.q.dim(1), a.kv.k.dim(1), a.q.dim(2)};
}
// Where a row stands for the rotation. `coordinates` null: at its position, on all axes.
struct TurnBy {
  int32_t position = 0;
  const int32_t* coordinates = nullptr;  // [3]
  int32_t on(const Rope& rope, int pair) const {
    return coordinates == nullptr ? position : coordinates[static_cast<const int32_t*>(rope.axes.data)[pair]];
  }
};
inline TurnBy turn_by(const AttentionPrepareArgs& a, int64_t row, int32_t position) {
  if (a.coordinates.empty()) return {position};
  return {position, static_cast<const int32_t*>(a.coordinates.data) + row * a.coordinates.stride[0]};
}
// KV heads that a call writes: none where the cache is another layer's.
inline int64_t written_heads(const AttentionPrepareArgs& a) {
  return a.k_proj.empty() ? 0 : a.kv.k.dim(1);
}

// Largest head that the fast kernels' scratch is made for; the references take any even d.
inline constexpr int64_t kMaxHeadDim = 512;
// Keys whose scores are taken together between two updates of a row's running maximum. Groups start at
// multiples of it, whatever the chunk. With 256 instead of 128 the sums are read and written half as often:
// 10-20% on heads of 256, nothing on heads of 128.
inline constexpr int64_t kGroupKeys = 256;
// Keys whose value blocks are staged together when many rows walk over them (a multiple of kGroupKeys): their
// copies stay in the second-level cache, and a tile of rows keeps its sums in the first for all of them.
inline constexpr int64_t kStagedKeys = 512;
inline constexpr int64_t kMaxTileRows = 32;

// An E4M3 cache as a task sees it: codes and scales of its KV head, and room for kStagedKeys keys and values as bf16,
// in which widen_blocks leaves those that are read next.
struct NarrowBlocks {
  const e4m3* k = nullptr;  // null: the cache is bf16
  const e4m3* v = nullptr;
  int64_t k_block = 0, v_block = 0;
  const int32_t* blocks = nullptr;
  bf16* wide_k = nullptr;
  bf16* wide_v = nullptr;
};

// Rows of a task: row i is token i / group, query head i % group of this KV head. All pointers are at the
// task's first token (q, gate, out) or at this KV head of block 0 (k, v; of an E4M3 cache, at its copies). Strides are
// in elements.
struct RowTask {
  const bf16* q = nullptr;
  const bf16* gate = nullptr;  // may be null
  bf16* out = nullptr;
  int64_t q_token = 0, q_head = 0, gate_token = 0, gate_head = 0, out_token = 0;
  const bf16* k = nullptr;
  const bf16* v = nullptr;
  int64_t k_block = 0, v_block = 0;
  const int32_t* blocks = nullptr;
  NarrowBlocks narrow;
  int64_t position = 0;  // of the first token
  int64_t tokens = 0, group = 0, d = 0;
  float scale = 1.0f;
  int64_t window = 0;             // 0: all positions
  const float* sinks = nullptr;   // of the group's heads; may be null
  const int32_t* ends = nullptr;  // of the tokens; may be null

  // Where the keys that token i attends to end. Those of later tokens end no earlier.
  int64_t end_of(int64_t i) const {
    const int64_t own = position + i + 1;
    return ends == nullptr || ends[i] < own ? own : ends[i];
  }
  // The first position that a token at `own` attends to.
  int64_t first_key(int64_t own) const { return window == 0 || own < window ? 0 : own - window + 1; }
  int64_t rows() const { return tokens * group; }
};

// Per-thread memory of a task, 64-byte aligned. `pitch` is d rounded up to 32 elements.
struct TaskScratch {
  int64_t pitch = 0;
  float* sums = nullptr;     // [rows][pitch]  running sum of p v
  float* scores = nullptr;   // [kMaxTileRows][kGroupKeys]  scores, then probabilities in place
  float* max = nullptr;      // [rows + 16]  running maximum, in units of log2
  float* total = nullptr;    // [rows + 16]  running sum of p
  float* queries = nullptr;  // [rows][pitch]  f32 or (in the first half) bf16
  bf16* values = nullptr;    // [kStagedKeys * d]  copies of value blocks
};

// Brings keys [begin, end) of an E4M3 cache and their values to where the task reads them, exactly. begin is a multiple
// of kBlockTokens, and end at most kStagedKeys further.
void widen_blocks(const RowTask& t, int64_t begin, int64_t end);
// Rounds `count` tokens' keys or values [count][d], `pitch` elements apart, into the head of an E4M3 block, from token
// `slot` on; keys: in the order of keys.
void write_codes(const bf16* tokens, int64_t pitch, int64_t count, int64_t d, bool keys, int64_t slot, e4m3* head);

// Splits the call into tasks and runs `task` on each.
void run_tasks(const OpContext& ctx, const PagedAttentionArgs& a, void (*task)(const RowTask& t, const TaskScratch& s));

void attend_amx(const RowTask& t, const TaskScratch& s);
void attend_avx512(const RowTask& t, const TaskScratch& s);
void attend_avx2(const RowTask& t, const TaskScratch& s);
void attend_reference(const OpContext& ctx, const PagedAttentionArgs& a);

// One block's worth of one segment's tokens: the task of a fast attention_prepare kernel. Their cosines and
// sines are computed once for all heads, and a head's 16 tokens of K or V are a few KiB that stay in the
// first-level cache while they are put in their interleaved places.
struct PrepareItem {
  const Segment* segment = nullptr;
  int32_t first = 0, count = 0;  // tokens of the segment, all in one block
};

// Per-thread memory of an item, 64-byte aligned.
struct PrepareScratch {
  int64_t pairs = 0;       // n_rot / 2, rounded up to 16
  float* cos = nullptr;    // [kBlockTokens][pairs]
  float* sin = nullptr;    // [kBlockTokens][pairs]
  float* head = nullptr;   // [d]
  bf16* tokens = nullptr;  // [kBlockTokens][d]  a head of 16 tokens
};

// Splits the call into items and runs `item` on each.
void run_items(const OpContext& ctx, const AttentionPrepareArgs& a,
               void (*item)(const AttentionPrepareArgs& a, const PrepareScratch& s, const PrepareItem& i));

void prepare_avx512(const AttentionPrepareArgs& a, const PrepareScratch& s, const PrepareItem& i);
void prepare_avx2(const AttentionPrepareArgs& a, const PrepareScratch& s, const PrepareItem& i);
void prepare_reference(const OpContext& ctx, const AttentionPrepareArgs& a);

}  // namespace quire::attention
