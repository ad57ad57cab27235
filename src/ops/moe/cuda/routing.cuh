// A token's experts and their weights, by one warp.
#pragma once

#include <climits>
#include <cmath>
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

__device__ inline const float* part_of_logit(const Routing& r, int32_t token, int32_t e, int32_t part) {
  return r.logits + (static_cast<int64_t>(part) * r.rows + token) * r.experts + e;
}
__device__ inline uint32_t key_of_logit(const Routing& r, float logit, int32_t e) {
  const float scaled = __fmul_rn(logit, r.scale == nullptr ? 1.0f : r.scale[0]);
  return ordered(r.bias == nullptr ? scaled : __fadd_rn(scaled, r.bias[e]));
}
// The logit of expert e as `ordered` has it.
__device__ inline uint32_t routing_key(const Routing& r, int32_t token, int32_t e) {
  float logit = 0;
#pragma unroll 8
  for (int32_t part = 0; part < r.parts; ++part) logit = __fadd_rn(logit, *part_of_logit(r, token, e, part));
  return key_of_logit(r, logit, e);
}
// Those of experts lane, lane + 32, ...; 0 where there is none. All loads of several parts are under way together.
// What is added for parts past the last is zero, which no sum that begins with zero is changed by.
template <int kPerLane>
__device__ void routing_keys(const Routing& r, int32_t token, int lane, uint32_t (&keys)[kPerLane]) {
  constexpr int kParts = kPerLane < 64 ? 64 / kPerLane : 1;
  float logits[kPerLane] = {};
  for (int32_t first = 0; first < r.parts; first += kParts) {
    float part[kParts][kPerLane];
#pragma unroll
    for (int p = 0; p < kParts; ++p)
#pragma unroll
      for (int i = 0; i < kPerLane; ++i)
        part[p][i] = first + p < r.parts && lane + 32 * i < r.experts
                         ? *part_of_logit(r, token, lane + 32 * i, first + p)
                         : 0.0f;
#pragma unroll
    for (int p = 0; p < kParts; ++p)
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) logits[i] = __fadd_rn(logits[i], part[p][i]);
  }
#pragma unroll
  for (int i = 0; i < kPerLane; ++i)
    keys[i] = lane + 32 * i < r.experts ? key_of_logit(r, logits[i], lane + 32 * i) : 0;
}

// The largest of a lane's values [kFirst, kEnd), the first of equal ones.
struct Largest {
  uint32_t value;
  int at;
};
template <int kFirst, int kEnd, int kPerLane>
__device__ Largest largest(const uint32_t (&of)[kPerLane]) {
  if constexpr (kEnd - kFirst == 1) {
    return {of[kFirst], kFirst};
  } else {
    constexpr int kMiddle = (kFirst + kEnd) / 2;
    const Largest a = largest<kFirst, kMiddle>(of), b = largest<kMiddle, kEnd>(of);
    return b.value > a.value ? b : a;
  }
}

// The k largest of the lanes' values, the lower index of equal ones: lane k gets the k-th in `value`, 0 if there is
// none, and its index, lane + 32 i of who had it. Those that were taken become 0.
template <int kPerLane>
__device__ int take_largest(uint32_t (&left)[kPerLane], int lane, int32_t count, uint32_t& value) {
  int own = 0;
  value = 0;
#pragma unroll 1
  for (int k = 0; k < count; ++k) {
    const Largest best = largest<0, kPerLane>(left);
    const uint32_t most = __reduce_max_sync(kAll, best.value);
    const unsigned have = __ballot_sync(kAll, best.value == most);
    int winner = __ffs(static_cast<int>(have)) - 1;
    if ((have & (have - 1)) != 0)  // equal ones, which is rare
      winner = __reduce_min_sync(kAll, best.value == most ? lane + 32 * best.at : INT_MAX) % 32;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      if (lane == winner && i == best.at) left[i] = 0;
    const int at = __shfl_sync(kAll, best.at, winner);
    if (lane == k) value = most, own = winner + 32 * at;
  }
  return own;
}

// The lanes' values in the order of lanes, for the first `count` of them.
__device__ inline float ranked_sum(float own, int32_t count) {
  float total = 0;
  for (int first = 0; first < count; first += 8) {
    float next[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) next[k] = __shfl_sync(kAll, own, first + k);
#pragma unroll
    for (int k = 0; k < 8; ++k) total = __fadd_rn(total, next[k]);
  }
  return total;
}

// Puts the experts of all groups but the best out of the running: their keys become 0.
template <int kPerLane>
__device__ void keep_best_groups(const Routing& r, uint32_t (&keys)[kPerLane], int lane) {
  const int32_t size = r.experts / r.rule.groups;
  uint32_t sums[1] = {0};  // lane g: of group g
  for (int32_t g = 0; g < r.rule.groups; ++g) {
    uint32_t of_group[kPerLane];
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) of_group[i] = (lane + 32 * i) / size == g ? keys[i] : 0;
    uint32_t best = 0;
    take_largest(of_group, lane, min(2, size), best);
    const float first = from_ordered(__shfl_sync(kAll, best, 0)), second = from_ordered(__shfl_sync(kAll, best, 1));
    if (lane == g) sums[0] = ordered(size > 1 ? __fadd_rn(first, second) : first);
  }
  uint32_t ignored = 0;
  const int used = take_largest(sums, lane, r.rule.used_groups, ignored);  // lane k: the k-th best group
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    bool kept = false;
    for (int32_t k = 0; k < r.rule.used_groups; ++k) kept |= __shfl_sync(kAll, used, k) == (lane + 32 * i) / size;
    if (!kept) keys[i] = 0;
  }
}

// Chooses by any rule: lane l has the logits of experts l, l + 32, ... in `left`, 0 where there is none. As
// choose_experts. Not inlined: it is long, and kernels of few rows wait for their instructions.
template <int kPerLane>
__device__ __noinline__ int choose_by_rule(const Routing& r, uint32_t (&left)[kPerLane], int lane, uint16_t* choice,
                                           float* weights, int32_t* chosen) {
  float scores[kPerLane];
  float top = -INFINITY, total = 0.0f;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) top = fmaxf(top, left[i] == 0 ? -INFINITY : from_ordered(left[i]));
  for (int d = 16; d > 0; d /= 2) top = fmaxf(top, __shfl_xor_sync(kAll, top, d));
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const float logit = from_ordered(left[i]);
    const float score = r.rule.sigmoid ? __frcp_rn(__fadd_rn(1.0f, expf(-logit))) : expf(logit - top);
    scores[i] = left[i] == 0 ? 0.0f : score;
    total = __fadd_rn(total, scores[i]);
  }
  total = r.rule.sigmoid ? 1.0f : warp_sum(total);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    scores[i] = __fdiv_rn(scores[i], total);
    const float bias = left[i] == 0 || r.rule.selection_bias == nullptr ? 0.0f : r.rule.selection_bias[lane + 32 * i];
    if (left[i] != 0) left[i] = ordered(__fadd_rn(scores[i], bias));
  }
  if (r.rule.used_groups < r.rule.groups) keep_best_groups(r, left, lane);
  uint32_t ignored = 0;
  const int own = take_largest(left, lane, r.top_k, ignored);
  float score = 0.0f;  // lane k: of its choice, which another lane has
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const float of_lane = __shfl_sync(kAll, scores[i], own % 32);
    if (own / 32 == i) score = of_lane;
  }
  if (lane >= r.top_k) score = 0.0f;
  const float sum = ranked_sum(score, r.top_k), least = r.rule.sigmoid ? 1e-20f : 0x1p-14f;
  const float factor = r.rule.normalised ? __fdiv_rn(r.rule.scale, fmaxf(sum, least)) : r.rule.scale;
  if (lane < r.top_k) {
    choice[lane] = static_cast<uint16_t>(own);
    if (chosen != nullptr) chosen[lane] = own;
    weights[lane] = __fmul_rn(score, factor);
  }
  return own;
}

// Chooses for a token, by one warp: lane l has the keys of experts l, l + 32, ...; 0 where there is none. The softmax
// over the chosen alone is the contract's: the sum of the k largest of E probabilities is at least k / E, far above its
// lower bound. `choice`, `weights` and, if not null, `chosen` are the token's own. Returns lane k's choice.
template <int kPerLane>
__device__ int choose_experts(const Routing& r, uint32_t (&left)[kPerLane], int lane, uint16_t* choice, float* weights,
                              int32_t* chosen) {
  if (!r.rule.plain) return choose_by_rule(r, left, lane, choice, weights, chosen);
  uint32_t value = 0;
  const int own = take_largest(left, lane, r.top_k, value);
  const float top = from_ordered(__shfl_sync(kAll, value, 0));
  const float p = lane < r.top_k ? expf(from_ordered(value) - top) : 0.0f;
  const float total = ranked_sum(p, r.top_k);  // those past the last are zero
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
  routing_keys(r, token, lane, keys);
  choose_experts(r, keys, lane, choice, weights, chosen);
}

__device__ inline void weigh_shared(const Routing& r, int32_t token, int lane, float* weights) {
  if (r.results == r.top_k) return;
  const float gate = shared_gate(r, token, lane);
  if (lane == 0) weights[r.top_k] = gate;
}

}  // namespace quire::moe_cuda
