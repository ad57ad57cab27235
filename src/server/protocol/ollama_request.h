// The bodies of POST /api/chat, /api/generate, /api/show, /api/pull, /api/embed and /api/embeddings, of Ollama's API.
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
struct OllamaPull {
  OllamaLoad model{};
  bool stream = true;
};
ApiResult<OllamaPull> parse_ollama_pull(JsonDocument body, const RequestLimits& limits);
// Without an input the client asks for the model to be there. What of an input does not fit is left out, unless the
// client says otherwise ("truncate").
ApiResult<std::variant<EmbeddingRequest, OllamaLoad>> parse_ollama_embed(JsonDocument body,
                                                                         const RequestLimits& limits);
// The same of the older route, which has one text as "prompt".
ApiResult<std::variant<EmbeddingRequest, OllamaLoad>> parse_ollama_embedding(JsonDocument body,
                                                                             const RequestLimits& limits);

}  // namespace quire::server
