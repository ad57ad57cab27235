// What a caller asks of the engine and what it hears back.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "cache/prefix_cache.h"
#include "constraint/constrained_output.h"
#include "core/id.h"
#include "core/result.h"
#include "engine/prompt_image.h"
#include "engine/shared_tokens.h"
#include "ops/sampling/sampling.h"

namespace quire {

// How a text shows which part of it is reasoning.
struct ReasoningMarks {
  std::string open, close;  // which stand around it; not empty
  bool inside = false;      // the text begins within
  bool anywhere = false;    // `open` begins it wherever it stands; else only before all text but white space
};

struct Request {
  SharedTokens prompt;                         // at least one token, each in the vocabulary
  std::shared_ptr<const PromptImages> images;  // within it, where the model has a vision tower; null: none
  int64_t max_tokens = 256;                    // to generate. 0: the prompt is computed and nothing follows it
  // Before so many tokens nothing ends the generation: tokens that would are not sampled, and stop texts are looked
  // for only in what follows.
  int64_t min_tokens = 0;
  SamplingParams sampling;
  std::vector<std::string> stop;            // texts that end the generation; never part of the output
  bool include_stop = false;                // but with this they are its end
  std::optional<ReasoningMarks> reasoning;  // stop texts are not looked for in it; none: everywhere
  std::vector<TokenId> stop_tokens;         // tokens that end it, besides the model's end-of-generation tokens
  bool ignore_eos = false;                  // end-of-generation tokens are ordinary tokens
  bool render_special = false;              // control tokens appear in the text
  // Nothing is generated: what comes is the prompt's embedding, or an error. What is said of tokens, sampling and
  // stopping has no meaning then.
  bool embed = false;
  // -1: none; n: the log-probabilities of the prompt's tokens, and beside each those of the n likeliest ones. Such a
  // prompt is computed whole, whatever the prefix cache has of it.
  int prompt_logprobs = -1;
  // What the answer must be; null: anything. Where its grammar is complete, min_tokens holds no longer.
  std::shared_ptr<const Constraint> constraint;
  bool speculative = true;  // its tokens may be drafted, which changes none of them
  int32_t priority = 0;     // lower ones start first, but who waits long is passed no more (engine/waiting_queue.h)
  uint64_t client = 0;      // whose it is: clients take turns. Any number; requests of one client have the same
  std::string cache_salt;   // prompts share what was computed only with those of the same salt
  std::vector<int64_t> cache_positions;  // of the prompt, before which its state should be saved (models that have one)
};

enum class FinishReason { kNone, kStop, kLength, kCancelled, kError };
std::string_view finish_reason_name(FinishReason r);  // "stop", "length", "cancelled", "error"

// How likely each token of a prompt was after those before it, under the unmodified distribution: entry i is of token
// i + 1, for nothing comes before the first.
struct PromptLogprobs {
  std::vector<float> logprobs;
  std::vector<int32_t> ranks;     // 1: no token was likelier
  size_t tops = 0;                // as many alternatives as were asked for
  std::vector<TokenLogprob> top;  // [entries][tops], likeliest first; a token of -1: there are no more
};

// What is heard of a request: that it has begun, its tokens or its embedding, and once its end, which comes last. One
// that ends early has an end alone.
struct TokenEvent {
  // A token of it, or its embedding, comes next.
  struct Begun {
    int64_t cached_tokens = 0;                   // of the prompt, that were found in the prefix cache
    PrefixMiss prefix_miss = PrefixMiss::kNone;  // why no more of it was, and
    int64_t diverged_at = -1;  // the first token that no cached prompt has, where others went another way
    std::optional<std::chrono::steady_clock::time_point> admitted;  // when it got a batch slot
    std::shared_ptr<const PromptLogprobs> prompt;                   // when asked for. Shared, because it may be large
  };
  // The texts of all tokens, put together, are the output.
  struct Token {
    TokenId id = -1;
    float logprob = 0.0f;                     // when asked for
    FinishReason ends = FinishReason::kNone;  // of the last one: kStop or kLength, and the end comes next
    std::string text;  // whole characters; may be empty while a character or a stop text is incomplete
    std::vector<TokenLogprob> top;
  };
  struct Embedding {
    std::vector<float> values;  // of length 1, as EngineOptions::pooling says
  };
  struct Ended {
    FinishReason finish = FinishReason::kNone;
    int stop = -1;                            // with kStop: which of Request::stop ended the text; -1: none did
    int64_t drafts = 0, drafts_accepted = 0;  // drafts that were verified for it, and those that were right
    std::optional<std::chrono::steady_clock::time_point> admitted;  // none: it has waited only
    std::optional<Error> error;                                     // with kError
  };
  using What = std::variant<Token, Begun, Embedding, Ended>;

  RequestId request;
  What what;

  // Null where it is something else.
  template <class T>
  const T* as() const {
    return std::get_if<T>(&what);
  }
  // For those who listen to tokens, texts and ends alone: -1, an empty text, kNone and null where it has none.
  TokenId token() const { return as<Token>() != nullptr ? as<Token>()->id : -1; }
  std::string_view text() const { return as<Token>() != nullptr ? as<Token>()->text : std::string_view(); }
  FinishReason finish() const { return as<Ended>() != nullptr ? as<Ended>()->finish : FinishReason::kNone; }
  const Error* error() const {
    const Ended* const end = as<Ended>();
    return end != nullptr && end->error ? &*end->error : nullptr;
  }
};

// Called on a thread of the engine's own, one event after the other for all requests: it should not take long, and
// steps wait for it when very many events are to be heard. It may call submit() and cancel(), and nothing else of the
// engine.
using Listener = std::function<void(const TokenEvent&)>;

}  // namespace quire
