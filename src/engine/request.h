// What a caller asks of the engine and what it hears back.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/prefix_cache.h"
#include "core/id.h"
#include "core/result.h"
#include "ops/sampling/sampling.h"

namespace quire {

struct Request {
  std::vector<TokenId> prompt;  // at least one token, each in the vocabulary
  int64_t max_tokens = 256;     // to generate, at least 1
  SamplingParams sampling;
  std::vector<std::string> stop;     // texts that end the generation; never part of the output
  std::vector<TokenId> stop_tokens;  // tokens that end it, besides the model's end-of-generation tokens
  bool ignore_eos = false;           // end-of-generation tokens are ordinary tokens
  bool render_special = false;       // control tokens appear in the text
  // Nothing is generated: the only event brings the prompt's embedding, or an error. What is said of tokens, sampling and
  // stopping has no meaning then.
  bool embed = false;
  int32_t priority = 0;    // lower ones start first; equal ones in order of arrival
  std::string cache_salt;  // prompts share what was computed only with those of the same salt
  std::vector<int64_t>
      cache_positions;  // of the prompt, before which its state should be saved (models that have one)
};

enum class FinishReason { kNone, kStop, kLength, kCancelled, kError };
std::string_view finish_reason_name(FinishReason r);  // "stop", "length", "cancelled", "error"

// One generated token, an embedding, or the end of a request. The texts of all events of a request, put together, are its
// output.
struct TokenEvent {
  RequestId request;
  TokenId token = -1;    // -1 when the event carries only text or the end
  std::string text;      // whole characters; may be empty while a character or a stop text is incomplete
  float logprob = 0.0f;  // when asked for
  std::vector<TokenLogprob> top;
  int64_t cached_tokens = 0;                   // of the prompt, that were found in the prefix cache
  PrefixMiss prefix_miss = PrefixMiss::kNone;  // why no more of it was, and
  int64_t diverged_at = -1;  // the first token that no cached prompt has, where others went another way
  FinishReason finish = FinishReason::kNone;
  std::optional<Error> error;    // with kError
  std::vector<float> embedding;  // of length 1, as EngineOptions::pooling says; with kStop
};

// Called on the thread that runs Engine::step(). Must not call back into the engine except submit() and
// cancel().
using Listener = std::function<void(const TokenEvent&)>;

}  // namespace quire
