// A token's experts and their weights, by one warp.
#pragma once

#include <climits>
#include <cstdint>

#include "ops/moe/cuda/routing.h"

namespace quire::moe_cuda {

inline constexpr unsigned kAll = 0xffffffffu;

__device__ inline float warp_sum(float v) {
  for (int d = 16; d > 0; d /= 2) v = __fadd_rn(v, __shfl_xor_sync(kAll, v, d));
  return v;
}

// sigmoid(shared_router . h[t]); eight columns of a lane at a time, then a tree over lanes.
__device__ inline float shared_gate(const Routing& r, int32_t token, int lane) {
  if (r.shared_router == nullptr) return 1.0f;
  float sum = 0;
#pragma unroll 8
  for (int32_t c = lane * 8; c < r.width; c += 256) {
    const uint4 bits = *reinterpret_cast<const uint4*>(r.h + token * r.h_stride + c);
    const float4 w0 = *reinterpret_cast<const float4*>(r.shared_router + c);
    const float4 w1 = *reinterpret_cast<const float4*>(r.shared_router + c + 4);
    const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
    const float weights[8] = {w0.x, w0.y, w0.z, w0.w, w1.x, w1.y, w1.z, w1.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sum = __fmaf_rn(__uint_as_float(words[i] << 16), weights[2 * i], sum);
      sum = __fmaf_rn(__uint_as_float(words[i] & 0xffff0000u), weights[2 * i + 1], sum);
    }
  }
  return __frcp_rn(__fadd_rn(1.0f, expf(-warp_sum(sum))));
}

// A float as an unsigned integer of the same order, above 0; NaN is the smallest of all.
__device__ inline uint32_t ordered(float v) {
  const uint32_t bits = __float_as_uint(v);
  if (isnan(v)) return 1;
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ inline float from_ordered(uint32_t o) {
  if (o == 1) return -INFINITY;
  return __uint_as_float((o & 0x80000000u) != 0 ? o & 0x7fffffffu : ~o);
}

// What experts are chosen by: the logit of expert e as `ordered` has it.
__device__ inline uint32_t routing_key(const Routing& r, int32_t token, int32_t e) {
  float logit = 0;
#pragma unroll 8
  for (int32_t part = 0; part < r.parts; ++part)
    logit = __fadd_rn(logit, r.logits[(static_cast<int64_t>(part) * r.rows + token) * r.experts + e]);
  return ordered(__fmul_rn(logit, r.scale == nullptr ? 1.0f : r.scale[0]));
}

// Chooses for a token, by one warp: lane l has the keys of experts l, l + 32, ...; 0 where there is none. The softmax
// over the chosen alone is the contract's: the sum of the k largest of E probabilities is at least k / E, far above its
// lower bound. `choice`, `weights` and, if not null, `chosen` are the token's own. Returns lane k's choice.
template <int kPerLane>
__device__ int choose_experts(const Routing& r, uint32_t (&left)[kPerLane], int lane, uint16_t* choice, float* weights,
                              int32_t* chosen) {
  uint32_t value = 0;  // lane k: the k-th largest,
  int own = 0;         // and whose it is
#pragma unroll 1
  for (int k = 0; k < r.top_k; ++k) {
    uint32_t best = left[0], same = 0;
#pragma unroll
    for (int i = 1; i < kPerLane; ++i) best = max(best, left[i]);
    const uint32_t most = __reduce_max_sync(kAll, best);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) same |= static_cast<uint32_t>(left[i] == most) << i;
    const int at = __reduce_min_sync(kAll, same != 0 ? lane + 32 * (__ffs(static_cast<int>(same)) - 1) : INT_MAX);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      if (at == lane + 32 * i) left[i] = 0;
    if (lane == k) value = most, own = at;
  }
  const float top = from_ordered(__shfl_sync(kAll, value, 0));
  const float p = lane < r.top_k ? expf(from_ordered(value) - top) : 0.0f;
  float total = 0;
  // In the order of ranks; those past the last are zero.
  for (int first = 0; first < r.top_k; first += 8) {
    float next[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) next[k] = __shfl_sync(kAll, p, first + k);
#pragma unroll
    for (int k = 0; k < 8; ++k) total = __fadd_rn(total, next[k]);
  }
  if (lane < r.top_k) {
    choice[lane] = static_cast<uint16_t>(own);
    if (chosen != nullptr) chosen[lane] = own;
    weights[lane] = __fdiv_rn(p, total);
  }
  return own;
}
template <int kPerLane>
__device__ void route(const Routing& r, int32_t token, int lane, uint16_t* choice, float* weights, int32_t* chosen) {
  uint32_t keys[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) keys[i] = lane + 32 * i < r.experts ? routing_key(r, token, lane + 32 * i) : 0;
  choose_experts(r, keys, lane, choice, weights, chosen);
}

__device__ inline void weigh_shared(const Routing& r, int32_t token, int lane, float* weights) {
  if (r.results == r.top_k) return;
  const float gate = shared_gate(r, token, lane);
  if (lane == 0) weights[r.top_k] = gate;
}

}  // namespace quire::moe_cuda
