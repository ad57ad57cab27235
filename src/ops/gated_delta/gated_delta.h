// The gated delta rule ("Gated Delta Networks", arXiv:2412.06464) as Qwen3.5 uses it (architectures.md
// section 6).
#pragma once

#include "ops/op.h"

namespace quire {

// Which key head serves value head h. kTiled: h % Hk (GGUF qwen35, qwen35moe). kGrouped: h / (Hv / Hk).
enum class HeadMap { kTiled, kGrouped };

// Recurrent state of one layer, indexed by slot:
//   conv   [slots, Kc - 1, C]    f32   last Kc - 1 inputs of the convolution, oldest first
//   state  [slots, Hv, Dv, Dk]   f32   S transposed: a value column is contiguous over the keys
struct DeltaState {
  Tensor conv, state;
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
// A segment at position 0 starts from zeros, whatever its slot holds; otherwise from its slot's conv state,
// which is left at the last Kc - 1 inputs of the segment. token_slots: as in GatedDeltaArgs, for decode
// segments.
struct GdnPrepareArgs {
  Tensor qkv, a, b;
  Tensor conv_weight, ssm_a, dt_bias;
  DeltaState cache;
  std::span<const Segment> segments;
  std::span<const int32_t> token_slots;
  Tensor q, k, v, g, beta;
};
void gdn_prepare(const OpContext& ctx, const GdnPrepareArgs& a);
std::span<const Kernel<GdnPrepareArgs>> gdn_prepare_kernels();

// For each row of each segment, per value head:
//     S <- e^g S;    S <- S + beta (v - S k) k^T;    out = Dk^(-1/2) S q
// A segment at position 0 starts from S = 0, otherwise from its slot; the slot holds the state after the last
// row.
//   q, k [T, Hk, Dk], v [T, Hv, Dv], out [T, Hv, Dv]   activation type, out does not alias
//   g, beta [T, Hv] f32
// gdn_chunked handles segments with decode == false: position % 64 == 0, chunks of 64 on the grid anchored at
// 0, the last one partial; long products, for prompts. gdn_recurrent handles segments with decode == true,
// token by token; one pass over the state for all rows of the segment. Each skips the other's segments, so
// both are called on every batch.
//   token_slots [T], optional (gdn_recurrent, gdn_prepare): slot that receives the state after row t; -1: not
//   kept. The segment's own slot is then only read (verification of drafted tokens: rollback is choosing a
//   slot).
// Bound: recurrent 8 Hv Dv Dk bytes of state per segment; chunked 2·64·(3 Dk + 2 Dv) + 6 Dk Dv operations per
// row, head.
struct GatedDeltaArgs {
  Tensor q, k, v, g, beta;
  HeadMap heads = HeadMap::kTiled;
  Tensor state;  // [slots, Hv, Dv, Dk] f32
  std::span<const Segment> segments;
  std::span<const int32_t> token_slots;
  Tensor out;
};
void gdn_chunked(const OpContext& ctx, const GatedDeltaArgs& a);
void gdn_recurrent(const OpContext& ctx, const GatedDeltaArgs& a);
std::span<const Kernel<GatedDeltaArgs>> gdn_chunked_kernels();
std::span<const Kernel<GatedDeltaArgs>> gdn_recurrent_kernels();

}  // namespace quire
