// The bodies of POST /api/chat, /api/generate, /api/show and /api/embed, of Ollama's API.
#pragma once

#include <optional>
#include <variant>

#include "server/protocol/chat_request.h"
#include "server/protocol/embedding_request.h"

namespace quire::server {

// Nothing is to be generated: the client asks for the model to be there, or about it.
struct OllamaLoad {
  IgnoredFields ignored{};
  std::string model{};
};

ApiResult<std::variant<ChatRequest, OllamaLoad>> parse_ollama_chat(JsonDocument body, const RequestLimits& limits);
// A prompt is put into the chat template as a user's message, or with "raw" continued as it is.
ApiResult<std::variant<ChatRequest, CompletionRequest, OllamaLoad>> parse_ollama_generate(JsonDocument body,
                                                                                          const RequestLimits& limits);
ApiResult<OllamaLoad> parse_ollama_show(JsonDocument body, const RequestLimits& limits);
ApiResult<EmbeddingRequest> parse_ollama_embed(JsonDocument body, const RequestLimits& limits);

}  // namespace quire::server
