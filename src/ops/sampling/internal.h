// What the sampling kernels share.
#pragma once

#include "ops/sampling/sampling.h"

namespace quire::sampling {

inline constexpr float kGreedyBelow = 1e-5f;  // temperatures below this mean greedy

// The logit of a token that a history has seen, `count` being what TokenHistory::counts says of it. In
// float32: all kernels compute it the same way (without fusing the multiplication and the addition), so that
// ties are the same ties.
constexpr float penalised(float logit, int32_t count, const SampleRow& row) {
  const int32_t in_output = count & (kInPrompt - 1);
  logit = logit > 0 ? logit / row.repetition_penalty : logit * row.repetition_penalty;
  if (in_output > 0) logit -= row.frequency_penalty * static_cast<float>(in_output) + row.presence_penalty;
  return logit;
}

// Adds a token to a history; see TokenHistory for what happens at its capacity.
inline void note(const TokenHistory& h, int32_t history, int32_t token, bool prompt) {
  if (token < 0 || token >= h.vocab) return;
  int32_t& count = h.counts[int64_t{history} * h.vocab + token];
  if (count == 0) {
    int32_t& seen = h.seen_count[history];
    if (seen >= h.capacity) return;
    h.seen[int64_t{history} * h.capacity + seen++] = token;
  }
  if (prompt)
    count |= kInPrompt;
  else
    ++count;
}

inline void empty(const TokenHistory& h, int32_t history) {
  int32_t* const counts = h.counts + int64_t{history} * h.vocab;
  const int32_t* const seen = h.seen + int64_t{history} * h.capacity;
  for (int32_t i = 0; i < h.seen_count[history]; ++i) counts[seen[i]] = 0;
  h.seen_count[history] = 0;
}

// What sampling row r leaves behind besides its own outputs: for the next step.
inline void settle(const SampleArgs& a, const SampleRow& row, int32_t token) {
  if ((row.flags & kSampleTentative) != 0) return;
  if (row.batch_slot >= 0) a.out.sampled.as<int32_t>()[row.batch_slot] = token;
  if (row.history >= 0) note(a.history, row.history, token, false);
}

// The token that a column of the logits stands for.
inline int32_t token_of(const SampleArgs& a, int32_t column) {
  return a.ids == nullptr ? column : a.ids[column];
}

// What the reference draws from: the columns that the filters leave, in ascending order, with their logits as sampled
// and their probabilities. One for greedy, none if no token is possible.
struct TokenProbability {
  int32_t column;
  float logit;
  double p;
};
std::vector<TokenProbability> reference_distribution(const SampleArgs& a, int64_t r);
// The column that row r draws from such a list; -1 from an empty one.
int32_t reference_draw(const SampleArgs& a, int64_t r, const std::vector<TokenProbability>& distribution);

void sample_reference(const OpContext& ctx, const SampleArgs& a);
void sample_avx2(const OpContext& ctx, const SampleArgs& a);
void sample_avx512(const OpContext& ctx, const SampleArgs& a);

}  // namespace quire::sampling
