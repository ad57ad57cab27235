// The gated delta rule ("Gated Delta Networks", arXiv:2412.06464) as Qwen3.5 uses it.
#pragma once

#include "ops/op.h"

namespace quire {

// Which key head serves value head h. kTiled: h % Hk (GGUF qwen35, qwen35moe). kGrouped: h / (Hv / Hk).
enum class HeadMap { kTiled, kGrouped };

// Recurrent state of one layer, indexed by slot. Slots may be any distance apart (storage is slot-major);
// what a slot holds of each is contiguous. A sequence's state is S0, the state after its first `anchor`
// tokens (Segment::anchor), and the tokens since then, which are pending, index = position - anchor:
//   state     [slots, Hv, Dv, Dk]  f32         S0 transposed: a value column is contiguous over the keys.
//                                              Zeros while anchor is 0, whatever the slot holds
//   pending_k [slots, W, Hk, Dk]   activation  the keys, as the operator got them
//   pending_u [slots, W, Hv, Dv]   f32         what each token added to the state: u k^T
//   pending_g [slots, W, Hv]       f32         each token's own log decay g. Sums are taken from the newest
//                                              back: every e^(G_t - G_j) is good to rounding even beside a g
//                                              of -10^4, and dropping the oldest changes no bit of the rest
//   conv      [slots, R, C]        activation  the convolution's input of position p at index p % R; R is a
//                                              power of two
// W >= kPendingTokens + the most tentative rows, R >= Kc - 1 + the most tentative rows.
struct DeltaState {
  Tensor state, pending_k, pending_u, pending_g, conv;
};

// Causal depthwise convolution with state, SiLU, split into q, k, v, L2 norm of q and k, decay and beta.
//   qkv          [T, C]       C = 2 Hk Dk + Hv Dv: [q | k | v] before the convolution, activation type
//   a, b         [T, Hv]      activation type or f32
//   conv_weight  [C, Kc]      f32, tap Kc - 1 multiplies the current token
//   ssm_a        [Hv]         f32, = -exp(A_log)
//   dt_bias      [Hv]         f32
//   q, k         [T, Hk, Dk]  out: x / sqrt(sum x^2 + 1e-6)
//   v            [T, Hv, Dv]  out
//   g            [T, Hv]      f32 out: ssm_a * softplus(a + dt_bias), natural log of the decay, <= 0
//   beta         [T, Hv]      f32 out: sigmoid(b)
// Inputs of positions below 0 are zeros, whatever the slot holds; other inputs before the segment's first
// come from its slot's ring, which afterwards holds those of the segment's last R positions. So rows that
// turn out rejected need no undoing. Reads and writes cache.conv only.
struct GdnPrepareArgs {
  Tensor qkv, a, b;
  Tensor conv_weight, ssm_a, dt_bias;
  DeltaState cache;
  SegmentArray segments;
  Tensor q, k, v, g, beta;
};
void gdn_prepare(const OpContext& ctx, const GdnPrepareArgs& a);
extern const Operator<GdnPrepareArgs> kGdnPrepareOp;

// For each row of each segment, per value head:
//     S <- e^g S;    u = beta (v - S k);    S <- S + u k^T;    out = Dk^(-1/2) S q
//   q, k [T, Hk, Dk], v [T, Hv, Dv], out [T, Hv, Dv]   activation type, out does not alias
//   g, beta [T, Hv] f32
// gdn_chunked handles prompt segments: position % 64 == 0 and anchor == position; chunks of 64 on the grid
// anchored at 0, the last one partial; long products. Starts from S0 (position 0: zeros) and leaves S0 after
// its last row and no pending tokens: anchor_after_prompt(). Uses cache.state only.
//
// gdn_recurrent handles decode segments, any number of rows. It reads S0 and the pending tokens instead of S,
//     S = e^(G_t) S0 + sum over j of e^(G_t - G_j) u_j k_j^T,
// appends rows to the pending tokens, and writes S0 only where a position t + 1 is a multiple of kPendingTokens: the
// tokens up to t are folded into S0 and those after it begin at index 0, as anchor_after_decode() says. Row t is always
// computed from the state after max(anchor, t rounded down to a multiple of kPendingTokens) tokens: where
// tentative rows stand before that, or drafts were accepted since, it is folded on the way (and written only
// when it may be). So a row's bits depend neither on how rows are cut into segments nor on which of them were
// tentative, and rejected rows are dropped by beginning the next segment before them. What the memory
// of pending tokens holds beyond the last row is unspecified.
//
// Each skips the other's segments, so both are called on every batch.
// Bound: recurrent 4 Hv Dv Dk bytes of S0 per segment, and as many again every kPendingTokens tokens, about
// 8 (2 Hk Dk + 4 Hv Dv) of pending tokens; chunked 2·64·(3 Dk + 2 Dv) + 6 Dk Dv operations per row, head.
// Traffic: rows as the host's bounds of the segments say; of pending tokens as many as there are on average.
struct GatedDeltaArgs {
  Tensor q, k, v, g, beta;
  HeadMap heads = HeadMap::kTiled;
  DeltaState cache;
  SegmentArray segments;
  Tensor out;
};
void gdn_chunked(const OpContext& ctx, const GatedDeltaArgs& a);
void gdn_recurrent(const OpContext& ctx, const GatedDeltaArgs& a);
extern const Operator<GatedDeltaArgs> kGdnChunkedOp;
extern const Operator<GatedDeltaArgs> kGdnRecurrentOp;

// The whole of a layer between its projections: gdn_prepare, gdn_chunked, gdn_recurrent and gated_rms_norm, on a CPU
// one after the other. A GPU fuses them for generated tokens.
//   z, y [T, Hv Dv]  activation type: the gate of the norm, and its result;  norm_weight [Dv] f32
// The other arguments are those of the four. q, k, v, g, beta and o are memory for what lies between; what
// they hold afterwards is unspecified on a GPU.
struct GatedDeltaNetArgs {
  Tensor qkv, z, a, b;
  Tensor conv_weight, ssm_a, dt_bias, norm_weight;
  float eps = 1e-6f;
  HeadMap heads = HeadMap::kTiled;
  DeltaState cache;
  SegmentArray segments;
  Tensor q, k, v, g, beta, o;
  Tensor y;
};
void gated_delta_net(const OpContext& ctx, const GatedDeltaNetArgs& a);
extern const Operator<GatedDeltaNetArgs> kGatedDeltaNetOp;

}  // namespace quire
