// /v1/embeddings: from a body to jobs.
#include "server/api.h"
#include "server/embedding_answer.h"
#include "server/protocol/embedding_request.h"

namespace quire::server {

struct Api::EmbeddingRoutes {
  static ApiStatus embeddings(Api& api, Call& call);
};

std::span<const Api::Route> Api::embedding_routes() {
  using H = EmbeddingRoutes;
  static constexpr Route kRows[] = {
      {"POST", "/v1/embeddings", Route::kKey, Route::kGenerates, kOpenAi, H::embeddings},
  };
  return kRows;
}

ApiStatus Api::EmbeddingRoutes::embeddings(Api& api, Call& call) {
  QUIRE_TRY(JsonDocument document, api.body(call));
  QUIRE_TRY(EmbeddingRequest r, parse_embedding_request(std::move(document), call.loaded.model->limits()));
  return api.embed(call, std::move(r), openai_embeddings);
}

ApiStatus Api::Direct::embed(EmbeddingRequest request, WriteVectors write) {
  return api_.embed(call_, std::move(request), std::move(write));
}

ApiStatus Api::embed(Call& call, EmbeddingRequest r, WriteVectors write) {
  const auto& [model, service] = call.loaded;
  report(call, r.ignored);
  QUIRE_CHECKED(model->check_name(r.model));
  const int64_t width = model->loaded().model->config().d_model;
  if (r.dimensions.value_or(width) > width)
    return bad_field("dimensions", "invalid_value", "'dimensions' is {}: this model's embeddings have {}",
                     *r.dimensions, width);
  EmbeddingPlan plan{.service = service,
                     .model_name = model->told_name(r.model),
                     .dimensions = static_cast<size_t>(r.dimensions.value_or(width)),
                     .base64 = r.base64,
                     .write = std::move(write),
                     .arrived = call.arrived,
                     .timeout = time_left(call),
                     .ticket = call.ticket,
                     .pool = &pool_,
                     .pool_client = pool_client_of(call)};
  std::vector<Job> jobs;
  for (Prompt& input : r.inputs) {
    QUIRE_TRY(EncodedPrompt encoded, r.cut_inputs ? model->encode_beginning(std::move(input), r.add_special)
                                                  : model->encode(std::move(input), r.add_special));
    QUIRE_CHECKED(model->check_input(encoded.tokens.size()));
    plan.prompt_tokens += static_cast<int64_t>(encoded.tokens.size());
    Job& job = jobs.emplace_back();
    job.counts = jobs.size() == r.inputs.size();
    job.request.priority = r.priority;
    job.request.client = client_of(call);
    job.request.embed = true;
    job.request.cache_salt = salt_of(call, r.cache_salt);
    job.request.prompt = std::move(encoded.tokens);
  }
  std::make_shared<EmbeddingAnswer>(std::move(plan), call.responder)->start(std::move(jobs));
  return {};
}

}  // namespace quire::server
