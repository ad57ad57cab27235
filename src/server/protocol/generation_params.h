// What chat and completion requests have in common: how to sample, when to stop, how to answer.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/request.h"
#include "image/decode.h"
#include "server/protocol/constraint.h"
#include "server/protocol/fields.h"
#include "server/protocol/media_policy.h"
#include "tokenizer/chat_template.h"

namespace quire::server {

// How a chat template takes the arguments of earlier calls: printed as JSON, or as the text that it puts into its own.
struct CallArguments {
  bool objects = true, texts = true;
};

// What a request may ask for. Set by the operator, but for what the model says.
struct RequestLimits {
  int max_n = 16;         // answers to one prompt
  int max_prompts = 64;   // prompts of one completion request
  int max_inputs = 2048;  // inputs of one embedding request
  int max_stops = 16;     // stop texts, and as many stop tokens
  int max_stop_bytes = 1024;
  int max_logprobs = 20;
  int max_logit_bias = 1024;
  int max_priority = 0;  // the lowest number that is taken: lower ones start first
  int64_t vocab = 0;     // tokens are 0 to vocab - 1
  int64_t context = 0;   // longest sequence, prompt and answer
  // Lines "NAME: ..." at the beginning of a system prompt that are no part of what the model reads: clients count or
  // bill with them, and one that changes with every request would make each prompt a new one from its first token on.
  std::vector<std::string> system_headers = {"x-anthropic-billing-header"};
  SamplingParams sampling{.temperature = 1.0f};  // of requests that do not say; by default as the API defines it
  bool strict_parameters = false;                // fields that nobody knows are refused
  bool additional_properties = false;            // of schemas that do not say (constraint/schema_gate.h)
  // The variable of the chat template that "reasoning_effort" sets; empty: the template has none. Filled in.
  std::string effort_variable;
  size_t max_tools = 512;                     // of one request
  size_t max_schema_bytes = size_t{1} << 20;  // of its tools as JSON text, and of a schema or grammar
  size_t max_call_bytes = size_t{1} << 20;    // of one call that a model writes
  bool template_tools = false;                // the chat template knows tools. Filled in
  CallArguments call_arguments;               // what it takes. Filled in
  TemplateRoles roles;                        // whose messages a conversation may have. Filled in
  bool infill = false;                        // the vocabulary has tokens for filling in. Filled in
  int64_t max_output_tokens = 0;  // of answers whose requests do not say; 0: as many as the context has room for
  bool any_model = false;         // a name that is not served means the model that there is
  bool images = false;            // the model takes pictures. Filled in
  int max_images = 256;           // of one request
  image::ImageLimits image;       // of each
  MediaPolicy media;              // from where those are fetched that requests name by URL
  size_t max_image_memory = size_t{2} << 30;  // of decoded pictures, of all requests together
};

inline constexpr size_t kMaxCacheSalt = 1024;  // bytes
inline constexpr int kLastPriority = 1'000'000;

struct GenerationParams {
  Request request;    // what the engine is asked, as far as the members below say nothing of it
  std::string model;  // empty: not said
  bool stream = false;
  bool include_usage = false;     // a last chunk with the usage
  bool continuous_usage = false;  // the usage so far in every chunk
  int n = 1;
  std::optional<int64_t> max_tokens;  // absent: what the server gives by default; 0: nothing is generated
  bool whole_room = false;            // -1 was asked for: no less than the server gives at most by default
  bool cut_max_tokens = false;        // more of them than there is room for are as many as there is room for
  std::optional<uint64_t> seed;       // absent: another one for every request
  std::optional<int64_t>
      truncate_prompt;                  // to so many of the prompt's last tokens; -1: to what the context has room for
  int prompt_logprobs = -1;             // of the prompt's tokens: -1, or the number of alternatives
  bool answer_logprobs = false;         // of the answer's tokens, in the form of those of the prompt's
  bool stop_in_reasoning = false;       // stop texts are looked for in reasoning too
  std::optional<AskedForm> form;        // that the answer must have
  std::vector<TokenId> allowed_tokens;  // of which it must be made; empty: any
  std::vector<std::string> bad_words;   // that must not be in it
  bool skip_special_tokens = true;
  std::string cache_salt;          // prompts share what was computed only with those of the same salt
  bool return_token_ids = false;   // tokens of the prompt and of answers are told
  bool return_cache_info = false;  // the usage says what of each prompt was found, and why no more
};

// Reads these fields; errors are kept in `f`.
void read_generation_params(Fields& f, const RequestLimits& limits, GenerationParams& p);

}  // namespace quire::server
