// Causal attention over a paged KV cache: preparation of q, k, v and the attention itself.
#pragma once

#include "ops/op.h"

namespace quire {

// The KV cache of one layer: k, v [n_blocks, Hkv, kv_head_elems], bf16, f32 (on the reference), or E4M3.
// Within a block and head the layout is the one matrix units want to read:
//   key   of token t, element c: [c / 2][t][c % 2]   a pair of elements, for all 16 tokens, is one 64-byte row (bf16)
//   value of token t, element c: [t / 2][c][t % 2]   a pair of tokens, for all d elements
// so that Q K^T and P V both contract over adjacent pairs. d is even. (A GPU has its own: cuda/layout.h.)
// E4M3: after a head's codes follow 16 scales, one for each token (scale.h).
struct KvLayer {
  Tensor k, v;
};
constexpr int64_t kv_head_elems(DType t, int64_t d) {
  return kBlockTokens * (d + (t == DType::kF8E4M3 ? 1 : 0));
}
constexpr int64_t key_offset(int64_t t, int64_t c) {
  return (c / 2) * (kBlockTokens * 2) + t * 2 + c % 2;
}
constexpr int64_t value_offset(int64_t t, int64_t c, int64_t d) {
  return (t / 2) * (d * 2) + c * 2 + t % 2;
}

struct Rope {
  enum class Style { kInterleaved, kHalves };  // pairs (2j, 2j+1), or (j, j + n_rot/2)
  Style style = Style::kHalves;
  int n_rot = 0;           // leading elements of a head that rotate; the rest pass through
  Tensor inv_freq;         // [n_rot / 2] f32: angle per position, scaling already applied
  float magnitude = 1.0f;  // multiplies cos and sin (YaRN)
  // [n_rot / 2] i32, each 0 ... 2: the one of a row's three coordinates that turns a pair. Empty: its position turns
  // all of them.
  Tensor axes = {};
};

// Splits and normalises the projections, rotates q and k, and writes k and v into the cache.
//   q_proj  [T, H * d], or [T, H * 2d] when gate is given: per head d of query, then d of gate (Qwen3.5)
//   k_proj, v_proj [T, Hkv * d]
//                  v_proj may be k_proj: values that are the keys as they were projected
//                  both empty: the keys and values of kv are another layer's, and nothing is written there
//   q_norm, k_norm [d] f32, optional: RMSNorm per head before the rotation (the gate is neither normed nor rotated)
//   v_norm [d] f32, optional: RMSNorm per head of the values
//   q      [T, H, d]   out, activation type
//   gate   [T, H, d]   out, optional
//   kv     k and v of row r go to its segment's block of that position; other positions are left alone. Into an E4M3
//          cache they are rounded under a scale of their own token and head
//   coordinates [T, 3] i32, with rope.axes alone: where a row stands for the rotation. Time, row and column within an
//          image; three times the same number for text, which is its position where no image stands before it
// Angle = float(position or coordinate) * inv_freq in float32, cos and sin correctly rounded to float32 or nearly so.
struct AttentionPrepareArgs {
  Tensor q_proj, k_proj, v_proj;
  Tensor q_norm, k_norm, v_norm = {};
  float eps = 1e-6f;
  Rope rope;
  SegmentArray segments;
  Tensor q, gate;
  KvLayer kv;
  Tensor coordinates = {};
};
void attention_prepare(const OpContext& ctx, const AttentionPrepareArgs& a);
extern const Operator<AttentionPrepareArgs> kAttentionPrepareOp;

// out[r, h] = softmax(scale * q[r, h] . K) V over positions 0 ... position of r of its sequence, times
// sigmoid(gate).
//   window       if not 0: over the last `window` of these positions alone, r's own among them
//   sinks [H] f32, optional: one more logit of each head, which takes its share of the softmax and adds no value
//   ends  [T] i32, optional: a row of a prompt looks at positions below max(its own + 1, ends[row]), which its segment
//         has. Its window begins where it does without. Rows of a segment look the further the later they are: no row
//         less far than the one before it. Rows of generated tokens have no end beyond their own
//   q     [T, H, d], gate [T, H, d] optional, out [T, H * d]   activation type
// Query head h uses KV head h / (H / Hkv). Softmax in float32, keys walked in groups cut at absolute
// positions in ascending order, so a row's bits do not depend on the chunking, on other rows or on where its
// blocks lie. Cache entries past a segment's last row may hold anything, NaN included; only a NaN or infinity
// among the values of the segment's own later tokens may reach its earlier rows, and one before a window the rows
// whose window begins in the same group.
// Traffic: decode rows share their segments' decode_keys evenly; where prompts stand is not known to the host, so all
// prompt rows count as one prompt that begins at position 0.
struct PagedAttentionArgs {
  Tensor q, gate;
  KvLayer kv;
  SegmentArray segments;
  float scale = 1.0f;
  Tensor out;
  int64_t window = 0;
  Tensor sinks;
  Tensor ends = {};
};
void paged_attention(const OpContext& ctx, const PagedAttentionArgs& a);
extern const Operator<PagedAttentionArgs> kPagedAttentionOp;

}  // namespace quire
