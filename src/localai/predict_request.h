// PredictOptions and RerankRequest as the requests that the server knows. What cannot be served is refused by name.
#pragma once

#include <backend.pb.h>

#include <variant>

#include "server/protocol/chat_request.h"
#include "server/protocol/score_request.h"

namespace quire::localai {

// A conversation where the model's own template is to be used, else the text of a prompt.
using PredictRequest = std::variant<server::ChatRequest, server::CompletionRequest>;
server::ApiResult<PredictRequest> read_predict(const backend::PredictOptions& asked,
                                               const server::RequestLimits& limits, bool stream);
// Of `Embeddings`, else of `EmbeddingTokens`, else of `Prompt`.
server::ApiResult<server::EmbeddingRequest> read_embedding(const backend::PredictOptions& asked,
                                                           const server::RequestLimits& limits);
server::ApiResult<server::ScoreRequest> read_rerank(const backend::RerankRequest& asked,
                                                    const server::RequestLimits& limits);

}  // namespace quire::localai
