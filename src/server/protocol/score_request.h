// The bodies of POST /v1/score and /v1/rerank: how much texts have to do with each other.
#pragma once

#include <string>
#include <vector>

#include "server/protocol/embedding_request.h"

namespace quire::server {

struct ScoreRequest {
  // A pair of inputs of `embedding`, by their numbers, for each score.
  struct Pair {
    size_t first = 0, second = 0;
  };
  EmbeddingRequest embedding{};
  std::vector<Pair> pairs{};
  // Of /v1/rerank.
  std::vector<std::string> documents{};  // their texts; empty where they are not to be repeated
  size_t top = 0;                        // so many of the best are told
};

// {"text_1", "text_2"}, each a string or an array of these: one with each of the others, or pair by pair.
ApiResult<ScoreRequest> parse_score_request(JsonDocument body, const RequestLimits& limits);
// {"query", "documents", "top_n", "return_documents"}: documents are strings or objects with "text".
ApiResult<ScoreRequest> parse_rerank_request(JsonDocument body, const RequestLimits& limits);

}  // namespace quire::server
