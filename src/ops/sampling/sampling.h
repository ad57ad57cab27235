// From logits to a token. A row's result depends on its logits, its parameters, its history and (seed,
// position) only.
#pragma once

#include <map>
#include <vector>

#include "ops/op.h"

namespace quire {

// Neutral values switch a step off; the default is greedy. Order: logit bias, suppressed tokens, repetition,
// presence and frequency penalties, temperature, then top-k, typical-p, top-p and min-p on the softmax.
// Repetition looks at prompt and output, presence and frequency at the output only (the OpenAI API's and
// vLLM's meaning).
struct SamplingParams {
  float temperature = 0.0f;  // 0: greedy, the lowest id among equals
  int top_k = 0;             // 0: off
  float top_p = 1.0f;
  float min_p = 0.0f;
  float typical_p = 1.0f;
  float repetition_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  std::map<int32_t, float> logit_bias;
  uint64_t seed = 0;
  int logprobs = -1;  // -1: none; n: the sampled token's log-probability and the n most likely tokens'

  // Nothing wrong, or which value is out of range and what is allowed.
  Status validate(int64_t vocab_size) const;
};

struct TokenLogprob {
  int32_t token = -1;
  float logprob = 0.0f;
};

struct SampleRow {
  const SamplingParams* params = nullptr;
  int64_t position = 0;             // of the token being sampled: the counter of the random generator
  std::span<const int32_t> prompt;  // token history, for the penalties
  std::span<const int32_t> output;
  std::span<const int32_t> suppressed;  // ids never to be sampled
};

struct Sampled {
  int32_t token = -1;
  float logprob = 0.0f;  // of the token under the unmodified distribution (log softmax of the raw logits)
  std::vector<TokenLogprob> top;  // the most likely tokens of that distribution, likeliest first
};

// logits [R, V] f32, left unchanged; rows[i] and out[i] belong to row i. Rows run in parallel.
// A row whose logits hold a NaN, or no finite value, reports token -1: the caller ends that request with an
// error.
struct SampleArgs {
  Tensor logits;
  std::span<const SampleRow> rows;
  std::span<Sampled> out;
};
void sample(const OpContext& ctx, const SampleArgs& a);

// Uniform in [0, 1) from a counter-based generator: no state, so it does not depend on what else is sampled.
double sample_uniform(uint64_t seed, int64_t position);

}  // namespace quire
