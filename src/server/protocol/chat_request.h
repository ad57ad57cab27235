// The bodies of POST /v1/chat/completions, /v1/completions, /infill, /tokenize and /detokenize.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "server/protocol/conversation.h"
#include "server/protocol/prompts.h"
#include "server/protocol/tool_request.h"
#include "server/tools/tool_set.h"

namespace quire::server {

struct ChatRequest {
  IgnoredFields ignored{};
  GenerationParams params{};
  Conversation conversation{};
  std::shared_ptr<const ToolSet> tools{};  // which the model is told of; null: none
  ToolChoice tool_choice{};
  bool parallel_calls = true;         // more than one in an answer
  std::string call_prefix = "call_";  // of the ids of calls
  bool separate_reasoning = true;     // SGLang's name: reasoning stands apart from the content
  bool drop_oldest = false;           // turns that the context has no room for are left out, the oldest first
};
// `ignored`: fields of the body that this one was made of, and that had no effect.
ApiResult<ChatRequest> parse_chat_request(JsonDocument body, const RequestLimits& limits, IgnoredFields ignored = {});

inline constexpr size_t kMaxCachePositions = 8;

struct CompletionRequest {
  IgnoredFields ignored{};
  GenerationParams params{};
  std::vector<Prompt> prompts{};           // at least one
  std::vector<int64_t> cache_positions{};  // of each prompt: tokens after which its state should be saved
  bool echo = false;                       // the prompt's text stands before each answer
  bool add_special = true;                 // BOS where the model wants it
  bool short_by_default = true;            // without max_tokens a few are generated, not as many as there is room for
  std::optional<Infill> infill{};          // what stands behind each prompt, which the answer leads to
};
// `ignored`: as above.
ApiResult<CompletionRequest> parse_completion_request(JsonDocument body, const RequestLimits& limits,
                                                      IgnoredFields ignored = {});

inline constexpr size_t kMaxInfillFiles = 1024;
// The body of POST /infill, as llama.cpp has it: {"input_prefix", "input_suffix", "prompt", "input_extra":
// [{"filename", "text"}]}, and the fields of a completion.
ApiResult<CompletionRequest> parse_infill_request(JsonDocument body, const RequestLimits& limits);
// What a client is told whose model cannot fill in.
ApiError no_infill(std::string_view field);

struct TokenizeRequest {
  IgnoredFields ignored{};
  std::string model{};
  std::variant<std::string, Conversation> input{};
  bool add_special = true;
  bool token_texts = false;
};
ApiResult<TokenizeRequest> parse_tokenize_request(JsonDocument body, const RequestLimits& limits);

struct DetokenizeRequest {
  IgnoredFields ignored{};
  std::string model{};
  std::vector<TokenId> tokens{};
};
ApiResult<DetokenizeRequest> parse_detokenize_request(JsonDocument body, const RequestLimits& limits);

}  // namespace quire::server
