// Recurrent state of one gated-delta-net layer on the GPU: what a slot holds.
//
// A slot is (S0, pending tokens, convolution inputs). S0 is the state after `anchor` tokens; the tokens [anchor,
// position) are pending, kept as the pairs (k, u) of which they add k u^T to the state. Decoding reads S0
// once a token and writes it only where a position is a multiple of 16 (kPendingTokens), because
//     S k = e^(G_t) S0 k + sum_j e^(G_t - G_j) (k_j . k) u_j
// so a step moves half the bytes of the plain recurrence (published as ReplaySSM,
// dao-lab.ai/blog/2026/replayssm). Drafts that are rejected cost nothing: the next step appends over them.
//
// Pending tokens and convolution inputs are rings over absolute positions: token p stands at p % pending, p % ring.
// Nothing moves when the anchor does, and what one step writes it never reads from memory, so that thread
// blocks that share a key head need no order among themselves.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "core/result.h"
#include "ops/segments.h"

namespace quire::cuda {

inline constexpr int kDeltaHead = 128;         // Dk = Dv: the only size with kernels
inline constexpr int kDeltaTaps = 4;           // Kc, likewise
inline constexpr int kDeltaMaxPending = 40;    // tokens that a slot has memory for at most
inline constexpr int kDeltaMaxDecodeRows = 8;  // rows of a decode segment at most

// One member of the slots: that of slot s begins stride_bytes * s behind base. Both multiples of 16 bytes.
template <class T>
struct SlotView {
  T* base = nullptr;
  int64_t stride_bytes = 0;
};

struct DeltaSlots {
  SlotView<float> state;              // [Hv, Dv, Dk]: S transposed, a value column is contiguous over the keys
  SlotView<__nv_bfloat16> pending_k;  // [pending, Hk, Dk] the normalised keys
  SlotView<float> pending_u;          // [pending, Hv, Dv] u_t = beta_t (v_t - S_t k_t), S_t already decayed
  SlotView<float> pending_g;          // [pending, Hv] log decay of the token itself: sums of them are formed from the
                                      // newest backwards, where the difference of two long sums would cancel
  SlotView<__nv_bfloat16> conv;       // [ring, C] inputs of the convolution, which are bf16 in any case
  int32_t pending = 0;                // tokens that there is memory for: >= 16 + drafts, <= kDeltaMaxPending
  int32_t ring = 0;                   // a power of two, >= Kc - 1 + rows of a decode segment
};

struct DeltaShape {
  int32_t Hk = 0, Hv = 0;  // Hv % Hk == 0
  bool grouped = false;    // value head h uses key head h / (Hv / Hk) (HeadMap::kGrouped) instead of h % Hk (kTiled)
  constexpr int32_t channels() const { return (2 * Hk + Hv) * kDeltaHead; }  // C = 2 Hk Dk + Hv Dv
};

// Parameters of the layer, float32, on the device.
struct DeltaWeights {
  const float* conv = nullptr;     // [C, Kc], tap Kc - 1 multiplies the current token
  const float* ssm_a = nullptr;    // [Hv] = -exp(A_log)
  const float* dt_bias = nullptr;  // [Hv]
};

// A row of [T, Hv] numbers, bf16 or float32.
struct GateInput {
  const void* data = nullptr;
  int64_t stride = 0;  // elements between rows
  bool bf16 = true;
};

// Fault::kBug and what is wrong with a shape or a slot layout. The launches do not ask: kernels.h does.
Status check_delta(const DeltaShape& shape);
Status check_delta(const DeltaSlots& slots);

}  // namespace quire::cuda
