// What a request says of how its tokens are chosen, and a row for each of its numbers: everybody who reads, checks or
// prints them goes through the rows.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <variant>

#include "core/result.h"

namespace quire {

inline constexpr float kMostBias = 100.0f;

// What a request says. Neutral values switch a step off; the default is greedy. The steps, in this order:
//   logit bias           added to the logit
//   suppressed           the logit becomes -infinity
//   mask                 so do those of tokens that the row's mask, if it has one, does not allow
//   repetition penalty   of tokens in prompt or output: positive logits are divided, others multiplied by it
//   frequency, presence  subtracted for tokens of the output (not the prompt): frequency times its count,
//                        presence once (the OpenAI API's and vLLM's meaning)
//   temperature          logits are divided by it; below 1e-5 the token is the largest logit and what follows
//                        is skipped
// and then filters of the softmax, each of which sees the renormalised distribution that the one before left:
//   top-k      the k largest logits, and all that equal the k-th
//   typical-p  least | -log p - entropy | first (locally typical sampling, arXiv:2202.00666), until their
//              probabilities add up to typical_p or more; ties go to the lower id
//   top-p      likeliest first, until they add up to top_p or more: at least one; ties go to the lower id
//   min-p      tokens at least min_p times as likely as the likeliest left
// Of what is left, the token is drawn whose logit / temperature + gumbel_noise(seed, position, id) is largest, the
// lower id among equals (draw_score, gumbel.h): token i with a probability proportional to exp(logit_i / temperature).
struct SamplingParams {
  float temperature = 0.0f;  // 0: greedy, the lowest id among equals
  int top_k = 0;             // 0: off
  float top_p = 1.0f;
  float min_p = 0.0f;
  float typical_p = 1.0f;
  float repetition_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  std::map<int32_t, float> logit_bias;  // at most kMostBias up or down
  uint64_t seed = 0;
  int logprobs = -1;  // -1: none; n: the sampled token's log-probability and the n most likely tokens'

  // Nothing wrong, or which value is out of range and what is allowed (Fault::kRequest): what the rows below say,
  // biases within kMostBias of ids in the vocabulary, logprobs in [-1, vocab_size].
  Status validate(int64_t vocab_size) const;
  bool has_penalties() const {
    return repetition_penalty != 1.0f || presence_penalty != 0.0f || frequency_penalty != 0.0f;
  }
};

// A number of SamplingParams. Its neutral value is the member's own default.
struct SamplingField {
  std::variant<float SamplingParams::*, int SamplingParams::*> member;
  std::string_view name;           // in requests, and in generation_config.json
  std::string_view also;           // llama.cpp's and Ollama's, which requests may use too; empty: the same
  const char* flags;               // on command lines
  std::string_view gguf;           // in a model's file, where its makers can recommend a value; empty: nowhere
  double low, high;                // a value may be either
  const char* help;                // a sentence, for command lines and documents
  bool minus_one_is_zero = false;  // to requests and files, as vLLM has it

  std::string_view llama_name() const { return also.empty() ? name : also; }
  // As floats are compared, which 0.01 is not exactly. NaN is out of every range.
  bool allows(double value) const {
    const auto x = static_cast<float>(value);
    return x >= static_cast<float>(low) && x <= static_cast<float>(high);
  }
  bool is_integer() const { return std::holds_alternative<int SamplingParams::*>(member); }
  std::string must_be() const;  // "between 0 and 1", "at least 0"

  // Calls visit(reference to its value in `params`).
  template <class Params, class Visit>
  decltype(auto) of(Params& params, Visit&& visit) const {
    return std::visit([&](auto m) -> decltype(auto) { return visit(params.*m); }, member);
  }
};

inline constexpr double kAnyCount = std::numeric_limits<int>::max();

inline constexpr SamplingField kSamplingFields[] = {
    // member, name, also, flags, gguf, low, high, help
    {&SamplingParams::temperature, "temperature", "", "--temperature,--temp", "general.sampling.temp", 0, 100,
     "0: always the likeliest token"},
    {&SamplingParams::top_k, "top_k", "", "--top-k", "general.sampling.top_k", 0, kAnyCount,
     "Keep the k likeliest tokens; 0: all", true},
    {&SamplingParams::top_p, "top_p", "", "--top-p", "general.sampling.top_p", 0, 1,
     "Keep the likeliest tokens that reach this probability"},
    {&SamplingParams::min_p, "min_p", "", "--min-p", "general.sampling.min_p", 0, 1,
     "Keep tokens of at least this share of the likeliest one's probability"},
    {&SamplingParams::typical_p, "typical_p", "", "--typical-p", "", 0, 1, "Locally typical sampling; 1: off"},
    {&SamplingParams::repetition_penalty, "repetition_penalty", "repeat_penalty",
     "--repetition-penalty,--repeat-penalty", "general.sampling.penalty_repeat", 0.01, 100,
     "On tokens of prompt and output; 1: off"},
    {&SamplingParams::presence_penalty, "presence_penalty", "", "--presence-penalty", "", -2, 2,
     "On tokens of the output"},
    {&SamplingParams::frequency_penalty, "frequency_penalty", "", "--frequency-penalty", "", -2, 2,
     "On tokens of the output, per occurrence"},
};

// Calls visit(row, reference to its value in `params`) for every row.
template <class Params, class Visit>
void each_sampling_field(Params& params, Visit visit) {
  for (const SamplingField& field : kSamplingFields) field.of(params, [&](auto& value) { visit(field, value); });
}

}  // namespace quire
