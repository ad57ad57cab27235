// What the sampling kernels share.
#pragma once

#include "ops/sampling/sampling.h"

namespace quire::sampling {

inline constexpr float kGreedyBelow = 1e-5f;  // temperatures below this mean greedy

// Logits with bias, suppression and penalties applied, in float32: all kernels compute it the same way, so
// that ties are the same ties.
inline float penalised(float logit, bool seen, int output_count, const SamplingParams& p) {
  if (seen) logit = logit > 0 ? logit / p.repetition_penalty : logit * p.repetition_penalty;
  if (output_count > 0) logit -= p.frequency_penalty * static_cast<float>(output_count) + p.presence_penalty;
  return logit;
}
inline bool has_penalties(const SamplingParams& p) {
  return p.repetition_penalty != 1.0f || p.presence_penalty != 0.0f || p.frequency_penalty != 0.0f;
}

// What the reference draws from: the tokens that the filters leave, in the order of their ids, with their
// probabilities. One token for greedy, none if no token is possible.
struct TokenProbability {
  int32_t id;
  double p;
};
std::vector<TokenProbability> reference_distribution(std::span<const float> logits, const SampleRow& row);

void sample_reference(const OpContext& ctx, const SampleArgs& a);
void sample_cpu(const OpContext& ctx, const SampleArgs& a);

}  // namespace quire::sampling
