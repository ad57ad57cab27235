// From logits to a token. A row's result depends on its logits, its parameters, its history and (seed,
// position) only.
#pragma once

#include <map>
#include <vector>

#include "ops/op.h"

namespace quire {

// Neutral values switch a step off; the default is greedy. The steps, in this order:
//   logit bias           added to the logit
//   suppressed           the logit becomes -infinity
//   repetition penalty   of tokens in prompt or output: positive logits are divided, others multiplied by it
//   frequency, presence  subtracted for tokens of the output (not the prompt): frequency times its count,
//                        presence once (the OpenAI API's and vLLM's meaning)
//   temperature          logits are divided by it; below 1e-5 the token is the largest logit and what follows
//   is
//                        skipped
// and then filters of the softmax, each of which sees the renormalised distribution that the one before left:
//   top-k      the k largest logits, and all that equal the k-th
//   typical-p  least | -log p - entropy | first (locally typical sampling, arXiv:2202.00666), until their
//              probabilities add up to typical_p or more; ties go to the lower id
//   top-p      likeliest first, until they add up to top_p or more: at least one; ties go to the lower id
//   min-p      tokens at least min_p times as likely as the likeliest left
// The token is drawn from what is left by inverting the cumulative distribution in the order of token ids.
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

  // Nothing wrong, or which value is out of range and what is allowed (Fault::kRequest). Allowed: temperature
  // >= 0, top_k >= 0, top_p, min_p and typical_p in [0, 1], repetition in [0.01, 100], presence and frequency
  // in
  // [-2, 2], biases in [-100, 100] of ids in the vocabulary, logprobs in [-1, vocab_size].
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
  float logprob = 0.0f;  // of the token under the unmodified distribution (log softmax of the raw logits); 0
                         // unless params->logprobs >= 0
  std::vector<TokenLogprob> top;  // the most likely tokens of that distribution, likeliest first, lower ids
                                  // first among equals; fewer than asked for if the others have probability 0
};

// logits [R, V] f32, left unchanged; rows[i] and out[i] belong to row i. Rows run in parallel.
// A row whose logits hold a NaN or +infinity, or none of whose tokens is possible (all -infinity, or
// suppressed), reports token -1: the caller ends that request with an error. Ids in histories, biases and
// suppressed are in [0, V). Sums of probabilities are in float64 over float32 terms, in an order that depends
// on the row alone. Bound: one read of the logits for greedy, one more with an exponential per logit for the
// rest.
struct SampleArgs {
  Tensor logits;
  std::span<const SampleRow> rows;
  std::span<Sampled> out;
};
void sample(const OpContext& ctx, const SampleArgs& a);
std::span<const Kernel<SampleArgs>> sample_kernels();

// Uniform in [0, 1), 53 bits, from a counter-based generator (Philox4x32-10, key: seed, counter: position):
// no state, so it does not depend on what else is sampled.
double sample_uniform(uint64_t seed, int64_t position);

}  // namespace quire
