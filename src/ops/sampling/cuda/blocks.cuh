// Logits in blocks of 512, a warp's worth: what the scan keeps of each, and how one is read again.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>

#include "ops/sampling/cuda/sample.h"

namespace quire::cuda {

inline constexpr int kBlockLogits = 512, kLogitsPerLane = kBlockLogits / 32;
inline constexpr float kGreedyBelow = 1e-5f;  // temperatures below this mean greedy

constexpr int sample_blocks(int vocab) {
  return (vocab + kBlockLogits - 1) / kBlockLogits;
}

// Of every block of every row, [rows][blocks]:
//   max, sum          of the logits as sampled (biased, suppressed, penalised), sum of exp((logit - max) /
//                     temperature). max is NaN if the block holds a NaN or +infinity; sum is that of rows that filter
//                     what they draw from
//   raw_max, raw_sum  of the logits as given, at temperature 1: of rows that report log-probabilities
//   best              [rows][sample_shares]: of rows that draw and filter nothing, the best of what each warp of the
//                     scan has seen (ScoredColumn, race.cuh)
struct BlockStats {
  float* max;
  float* sum;
  float* raw_max;
  float* raw_sum;
  unsigned long long* best;
};
inline constexpr int kScanWarps = 8, kBlocksPerWarp = 4, kScanBlocks = kScanWarps * kBlocksPerWarp;
constexpr int sample_shares(int vocab) {
  return (sample_blocks(vocab) + kScanBlocks - 1) / kScanBlocks * kScanWarps;
}

__device__ __forceinline__ bool filters(const SampleParams& p, const SampleRow& row) {
  return (row.top_k > 0 && row.top_k < p.vocab) || row.typical_p < 1.0f || row.top_p < 1.0f || row.min_p > 0.0f;
}

// exp(x) for x <= 0, within 1e-6 of it where it is not tiny; 0 for -infinity.
__device__ __forceinline__ float weight_of(float exponent) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(__fmul_rn(exponent, 1.4426950408889634f)));
  return r;
}

// The token that element i of a lane belongs to.
__device__ __forceinline__ int token_of(int block, int lane, int i) {
  return block * kBlockLogits + i / 4 * 128 + lane * 4 + i % 4;
}

// Logits of a block as given, elements [first, first + kCount) of the lane; -infinity past the vocabulary.
template <int kCount>
__device__ __forceinline__ void load_raw(const float* row, int vocab, int block, int lane, int first,
                                         float (&x)[kCount]) {
#pragma unroll
  for (int j = 0; j < kCount; j += 4) {
    const int id = token_of(block, lane, first + j);
    if (id + 4 <= vocab) {
      const float4 v = *reinterpret_cast<const float4*>(row + id);
      x[j] = v.x;
      x[j + 1] = v.y;
      x[j + 2] = v.z;
      x[j + 3] = v.w;
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e) x[j + e] = id + e < vocab ? row[id + e] : -INFINITY;
    }
  }
}

// Calls apply(element, which) in the lane that holds it, for every entry of a list of ids that lies in the block. x
// belongs to the block's elements [first, first + kCount) of each lane.
template <int kCount, class T, class Apply>
__device__ __forceinline__ void for_each_listed(const int32_t* ids, int count, int block, int lane, int first,
                                                T (&x)[kCount], Apply apply) {
  for (int base = 0; base < count; base += 32) {
    const int id = base + lane < count ? ids[base + lane] : -1;
    for (unsigned left = __ballot_sync(~0u, id >= 0 && id / kBlockLogits == block); left != 0; left &= left - 1) {
      const int from = __ffs(static_cast<int>(left)) - 1, wanted = __shfl_sync(~0u, id, from);
#pragma unroll
      for (int i = 0; i < kCount; ++i)
        if (token_of(block, lane, first + i) == wanted) apply(x[i], base + from);
    }
  }
}

__device__ __forceinline__ bool modifies(const SampleParams& p, const SampleRow& row) {
  return row.bias_count > 0 || p.suppressed_count > 0 || row.mask >= 0 || has_penalties(row);
}

// Bias, suppression, mask and penalties, in this order, with the roundings of the CPU (nothing is fused).
template <int kCount>
__device__ __forceinline__ void modify(const SampleParams& p, const SampleRow& row, int block, int lane, int first,
                                       float (&x)[kCount]) {
  for_each_listed(p.bias_ids + row.bias_begin, row.bias_count, block, lane, first, x,
                  [&](float& logit, int i) { logit = __fadd_rn(logit, p.bias_values[row.bias_begin + i]); });
  for_each_listed(p.suppressed, p.suppressed_count, block, lane, first, x,
                  [](float& logit, int) { logit = -INFINITY; });
  if (row.mask >= 0) {
    const uint32_t* mask = p.masks + row.mask * mask_words(p.vocab);
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {  // four elements are neighbours, and of one word
      const int id = token_of(block, lane, first + i);
      const uint32_t bits = id < p.vocab ? mask[id / 32] >> (id % 32) : 0;
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if ((bits >> e & 1) == 0) x[i + e] = -INFINITY;
    }
  }
  if (!has_penalties(row)) return;
  const int32_t* noted = p.history.counts + static_cast<int64_t>(row.history) * p.history.vocab;
  int32_t counts[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int id = token_of(block, lane, first + i);
    counts[i] = id < p.vocab ? noted[id] : 0;
  }
  const auto one_more = [](int32_t& count, int) { ++count; };
  for_each_listed(p.bias_ids + row.unnoted_begin, row.unnoted_count, block, lane, first, counts, one_more);
  for_each_listed(p.sampled + row.drafts_begin, row.drafts_count, block, lane, first, counts, one_more);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int32_t count = counts[i];
    if (count == 0) continue;
    x[i] = x[i] > 0 ? __fdiv_rn(x[i], row.repetition_penalty) : __fmul_rn(x[i], row.repetition_penalty);
    const int32_t in_output = count & (kInPrompt - 1);
    if (in_output > 0)
      x[i] = __fsub_rn(
          x[i], __fadd_rn(__fmul_rn(row.frequency_penalty, static_cast<float>(in_output)), row.presence_penalty));
  }
}

// Adds a token to a history, `filled` being how many its list holds; by one thread.
__device__ inline void note(const TokenHistory& h, int32_t history, int32_t token, bool prompt, int32_t& filled) {
  if (token < 0 || token >= h.vocab) return;
  int32_t& count = h.counts[static_cast<int64_t>(history) * h.vocab + token];
  if (count == 0) {
    if (filled >= h.capacity) return;
    h.seen[static_cast<int64_t>(history) * h.capacity + filled++] = token;
  }
  count = prompt ? count | kInPrompt : count + 1;
}

}  // namespace quire::cuda
