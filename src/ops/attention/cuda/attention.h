// Attention on CUDA: preparation of q, k, v; attention of generated tokens; attention of prompt chunks. The operators'
// meaning is that of ops/attention/attention.h; the arguments are plain device pointers and host-known bounds.
// Every launch only enqueues on the stream: no allocation, no synchronisation, capturable in a graph.
#pragma once

#include <cuda_runtime_api.h>

#include "core/result.h"
#include "ops/attention/cuda/layout.h"
#include "ops/attention/parts.h"

namespace quire::cuda {

// What the kernels are made for. The launches do not look at it: kernels.h does. The widest heads have a kernel of
// their own for prompts.
inline constexpr int kWideHeadSize = 512;
constexpr bool attention_takes_head_size(int d) {
  return d == 64 || d == 128 || d == 256 || d == kWideHeadSize;
}
inline constexpr int kMaxAttentionSegments = 4096;  // of either kind

// Rows [row, row + count) of each segment, in activation type bf16:
//   q_proj  [T, H * d], or [T, H * 2 d] when gated: per head d of query, then d of gate (Qwen3.5)
//   k_proj, v_proj [T, Hkv * d]
//   q_norm, k_norm [d] f32 or null: RMSNorm per head, before the rotation; v_norm [d] f32 or null: of the values
//   q       [T, H, d] out
//   gate    [T, H, d] out, or null: attention can read the gate where it is, in q_proj (AttentionParams)
//   kv      k and v of a row go to its segment's block of that position, into an E4M3 cache with a scale for each head;
//           nothing else is written
// T = `rows`. Rows without a segment are skipped. Angle = float(position) * inv_freq in float32, sine and cosine
// within 2 ulp. A row's sum of squares is a fixed tree. Moves (2 to 3) * H * d + 4 * Hkv * d elements a row: memory
// bound.
struct AttentionPrepareParams {
  const bf16* q_proj = nullptr;
  const bf16* k_proj = nullptr;
  const bf16* v_proj = nullptr;
  int64_t q_stride = 0, k_stride = 0, v_stride = 0;  // elements from a row to the next; multiples of 8
  bool gated = false;
  const float* q_norm = nullptr;
  const float* k_norm = nullptr;
  const float* v_norm = nullptr;
  float eps = 1e-6f;
  int n_rot = 0;                    // leading elements of a head that rotate: even, at most d
  bool halves = true;               // pairs (j, j + n_rot / 2), or (2j, 2j + 1)
  const float* inv_freq = nullptr;  // [n_rot / 2] angle per position
  float magnitude = 1.0f;           // multiplies sine and cosine
  const int32_t* axes = nullptr;    // [n_rot / 2], and of each row three `coordinates`: which of them turns a pair.
  const int32_t* coordinates = nullptr;  // Null: a row's position turns all
  SegmentArray segments;                 // device memory
  int rows = 0;
  int q_heads = 0, kv_heads = 0, head_size = 0;  // kv_heads: that are written; 0: queries alone
  bf16* q = nullptr;
  bf16* gate = nullptr;
  KvCache kv;
};
Status launch_attention_prepare(cudaStream_t stream, const AttentionPrepareParams& p);

// out[r, h] = softmax(scale * q[r, h] . K) V over positions 0 ... position of r of its sequence, or the last `window`
// of these, times sigmoid(gate).
//   q    [T, H, d], rows q_stride apart
//   gate null, or the element (r, h, c) at gate[r * gate_stride + h * gate_head_stride + c]
//   out  [T, H * d], rows out_stride apart
// Strides in elements, multiples of 8. Query head h uses KV head h / (H / Hkv). scale > 0. Cache entries past a
// segment's last row may hold anything, NaN included; only a NaN or infinity among the values of the segment's own
// later rows may reach its earlier rows.
//
// decode_attention serves segments [0, decodes), prompt_attention segments [decodes, count). A row's bits depend on
// the row, its position, and which of the two computed it; not on other rows or segments, nor on the grid. An E4M3
// cache gives the bits of a bf16 one that holds the same numbers.
struct AttentionParams {
  const bf16* q = nullptr;
  const bf16* gate = nullptr;
  bf16* out = nullptr;
  int64_t q_stride = 0, gate_stride = 0, gate_head_stride = 0, out_stride = 0;
  KvCache kv;
  SegmentArray segments;  // device memory
  int q_heads = 0, kv_heads = 0, head_size = 0;
  float scale = 1.0f;
  int window = 0;                 // positions that a row looks at, its own among them; 0: all
  const float* sinks = nullptr;   // [H] or null: one more logit of each head, without a value
  const int32_t* ends = nullptr;  // [T] or null: PagedAttentionArgs::ends, which only prompt_attention looks at
};

// What the host knows of the decode segments of a step (or of all steps that a captured graph will serve).
struct DecodeBounds {
  int rows = 1;  // the most rows of one segment: 1 + drafts
  // At least the sum of attention_parts(position + count) over the segments, or with a window of those parts that it
  // reaches.
  int64_t max_parts = 0;
};

// Generated tokens. Keys are cut in parts of 256 at absolute positions; parts are computed in parallel, by a grid that
// walks the list of all parts, and added by a second kernel in an order that depends on the parts' numbers. Products by
// mma.sync (sm_80 and later) with float32 sums, probabilities in bf16. Within a part four warps (two with heads of 512)
// take its blocks of 16 keys in turn and are added in order. Bound: one read of the K and V of every sequence.
// workspace: decode_attention_workspace_bytes, 256-byte aligned, contents irrelevant. At most 4096 decode segments.
int64_t decode_attention_workspace_bytes(const AttentionParams& p, const DecodeBounds& bounds);
Status launch_decode_attention(cudaStream_t stream, const AttentionParams& p, const DecodeBounds& bounds,
                               void* workspace);

// Prompt chunks: keys are walked in tiles of 64 at absolute positions (32 with heads of 512, and of 256 without wgmma),
// ascending, with an online softmax in float32; probabilities in bf16. 128 rows of (token, query head of one KV head)
// share a tile. `rows` is at least the number of rows of all prompt segments together. At most 4096 prompt segments. No
// workspace. By wgmma where the code is for sm_90a, by mma.sync (no E4M3 cache) elsewhere: the other one traps. Heads
// of 512 by mma.sync everywhere (launch_prompt_wide); an E4M3 cache takes blocks with 144 KiB of shared memory there.
Status launch_prompt_wgmma(cudaStream_t stream, const AttentionParams& p, int rows);
Status launch_prompt_mma(cudaStream_t stream, const AttentionParams& p, int rows);
Status launch_prompt_wide(cudaStream_t stream, const AttentionParams& p, int rows);

}  // namespace quire::cuda
