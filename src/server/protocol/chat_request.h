// The bodies of POST /v1/chat/completions, /v1/completions, /tokenize and /detokenize.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "server/protocol/prompts.h"

namespace quire::server {

// A conversation as the chat template sees it.
struct Conversation {
  // [{"role", "content", ...}]: contents are strings or null (parts of text are joined by line breaks), the role
  // "developer" is "system". What else a message holds (name, tool_calls, reasoning_content) reaches the template
  // as it is.
  Json messages;
  Json template_variables;  // chat_template_kwargs: an object, or null
  bool add_generation_prompt = true;
};

struct ChatRequest {
  GenerationParams params;
  Conversation conversation;
};
ApiResult<ChatRequest> parse_chat_request(const Json& body, const RequestLimits& limits);

struct CompletionRequest {
  GenerationParams params;
  std::vector<Prompt> prompts;  // at least one
  bool echo = false;            // the prompt's text stands before each answer
  bool add_special = true;      // BOS where the model wants it
};
ApiResult<CompletionRequest> parse_completion_request(const Json& body, const RequestLimits& limits);

struct TokenizeRequest {
  std::string model;
  std::variant<std::string, Conversation> input;
  bool add_special = true;
  bool token_texts = false;
};
ApiResult<TokenizeRequest> parse_tokenize_request(const Json& body);

struct DetokenizeRequest {
  std::string model;
  std::vector<TokenId> tokens;
};
ApiResult<DetokenizeRequest> parse_detokenize_request(const Json& body, const RequestLimits& limits);

}  // namespace quire::server
