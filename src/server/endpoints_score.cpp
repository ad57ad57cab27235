// /v1/score and /v1/rerank: cosines of embeddings.
#include <algorithm>
#include <numeric>

#include "server/api.h"
#include "server/embedding_answer.h"
#include "server/protocol/score_request.h"
#include "server/random_id.h"

namespace quire::server {

struct Api::ScoreRoutes {
  static ApiStatus score(Api& api, Call& call);
  static ApiStatus rerank(Api& api, Call& call);
};

std::span<const Api::Route> Api::score_routes() {
  using H = ScoreRoutes;
  static constexpr Route kRows[] = {
      {"POST", "/v1/score", Route::kKey, Route::kGenerates, kOpenAi, H::score},
      {"POST", "/v1/rerank", Route::kKey, Route::kGenerates, kOpenAi, H::rerank},
  };
  return kRows;
}
namespace {

using Vectors = std::vector<std::vector<float>>;

// Vectors have length 1.
std::vector<double> scores_of(const std::vector<ScoreRequest::Pair>& pairs, const Vectors& vectors) {
  std::vector<double> scores;
  for (const auto& [first, second] : pairs)
    scores.push_back(std::inner_product(vectors[first].begin(), vectors[first].end(), vectors[second].begin(), 0.0));
  return scores;
}

Json usage_json(int64_t tokens) {
  return {{"prompt_tokens", tokens}, {"total_tokens", tokens}};
}

}  // namespace

ApiStatus Api::ScoreRoutes::score(Api& api, Call& call) {
  QUIRE_TRY(JsonDocument document, api.body(call));
  QUIRE_TRY(ScoreRequest r, parse_score_request(std::move(document), call.loaded.model->limits()));
  return api.embed(call, std::move(r.embedding),
                   [pairs = std::move(r.pairs)](const EmbeddingPlan& plan, const Vectors& vectors) {
                     const std::vector<double> scores = scores_of(pairs, vectors);
                     Json data = Json::array();
                     for (size_t i = 0; i < scores.size(); ++i)
                       data.push_back({{"index", i}, {"object", "score"}, {"score", scores[i]}});
                     return dump({{"id", "score-" + random_hex()},
                                  {"object", "list"},
                                  {"created", std::time(nullptr)},
                                  {"model", plan.model_name},
                                  {"data", std::move(data)},
                                  {"usage", usage_json(plan.prompt_tokens)}});
                   });
}

ApiStatus Api::ScoreRoutes::rerank(Api& api, Call& call) {
  QUIRE_TRY(JsonDocument document, api.body(call));
  QUIRE_TRY(ScoreRequest r, parse_rerank_request(std::move(document), call.loaded.model->limits()));
  EmbeddingRequest embedding = std::move(r.embedding);
  return api.embed(call, std::move(embedding), [r = std::move(r)](const EmbeddingPlan& plan, const Vectors& vectors) {
    const std::vector<double> scores = scores_of(r.pairs, vectors);
    std::vector<size_t> order(scores.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return scores[a] > scores[b]; });
    order.resize(r.top);
    Json results = Json::array();
    for (const size_t i : order) {
      Json entry = {{"index", i}, {"relevance_score", scores[i]}};
      if (!r.documents.empty()) entry["document"] = {{"text", r.documents[i]}};
      results.push_back(std::move(entry));
    }
    return dump({{"id", "rerank-" + random_hex()},
                 {"model", plan.model_name},
                 {"usage", usage_json(plan.prompt_tokens)},
                 {"results", std::move(results)}});
  });
}

}  // namespace quire::server
