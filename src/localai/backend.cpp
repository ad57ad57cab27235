#include "localai/backend.h"

#include <unistd.h>

#include <fstream>
#include <numeric>

#include "localai/predict_request.h"
#include "server/generation.h"
#include "tokenizer/unicode.h"

namespace quire::localai {
namespace {

using server::ApiStatus;
using Direct = server::Api::Direct;

// Answers a request for text in replies.
ApiStatus predict(const backend::PredictOptions& asked, bool stream, Model& model, Direct& call) {
  QUIRE_TRY(PredictRequest request, read_predict(asked, call.model().limits(), stream));
  const auto writer = [last = model.last](const server::GenerationPlan& plan) {
    return predict_writer(plan.model->tokenizer(), plan.logprobs, last);
  };
  if (auto* const chat = std::get_if<server::ChatRequest>(&request))
    return call.chat(std::move(*chat), [writer](const server::GenerationPlan& plan, const server::GenerationParams&) {
      return writer(plan);
    });
  return call.complete(std::get<server::CompletionRequest>(std::move(request)),
                       [writer](const server::GenerationPlan& plan, const server::GenerationParams&,
                                const std::vector<std::string>&) { return writer(plan); });
}

using Vectors = std::vector<std::vector<float>>;

std::string embedding_bytes(const server::EmbeddingPlan&, const Vectors& vectors) {
  backend::EmbeddingResult result;
  result.mutable_embeddings()->Add(vectors.front().begin(), vectors.front().end());
  return result.SerializeAsString();
}

// The documents by how much they have to do with the query, most first: the cosines of embeddings, whose length is 1.
std::string rerank_bytes(const server::ScoreRequest& request, const server::EmbeddingPlan& plan,
                         const Vectors& vectors) {
  std::vector<backend::DocumentResult> all;
  for (size_t i = 0; i < request.pairs.size(); ++i) {
    const auto& [query, document] = request.pairs[i];
    backend::DocumentResult& one = all.emplace_back();
    one.set_index(static_cast<int32_t>(i));
    one.set_text(request.documents[i]);
    one.set_relevance_score(static_cast<float>(
        std::inner_product(vectors[query].begin(), vectors[query].end(), vectors[document].begin(), 0.0)));
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const auto& a, const auto& b) { return a.relevance_score() > b.relevance_score(); });
  backend::RerankResult result;
  for (size_t i = 0; i < request.top; ++i) *result.add_results() = std::move(all[i]);
  result.mutable_usage()->set_prompt_tokens(static_cast<int32_t>(plan.prompt_tokens));
  result.mutable_usage()->set_total_tokens(static_cast<int32_t>(plan.prompt_tokens));
  return result.SerializeAsString();
}

// Without what a model's template or a prompt would add: Detokenize gives the text back.
ApiStatus tokenize(const backend::PredictOptions& asked, Model&, Direct& call) {
  QUIRE_TRY(const server::EncodedPrompt encoded, call.model().encode(server::Prompt(asked.prompt()), false));
  backend::TokenizationResponse response;
  response.set_length(static_cast<int32_t>(encoded.tokens.size()));
  response.mutable_tokens()->Add(encoded.tokens.begin(), encoded.tokens.end());
  call.answer(response.SerializeAsString());
  return {};
}

ApiStatus detokenize(const backend::DetokenizeRequest& asked, Model&, Direct& call) {
  const Tokenizer& tokenizer = call.model().tokenizer();
  std::vector<TokenId> tokens;
  for (const int32_t token : asked.tokens()) {
    if (token < 0 || token >= tokenizer.size())
      return server::bad_field("tokens", "invalid_value", "'tokens' has {}: they are 0 to {}", token,
                               tokenizer.size() - 1);
    tokens.push_back(token);
  }
  backend::DetokenizeResponse response;
  response.set_content(unicode::replace_invalid(tokenizer.decode(tokens, true)));
  call.answer(response.SerializeAsString());
  return {};
}

// What this process has of the machine's memory.
uint64_t resident_bytes() {
  uint64_t all = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

Backend::Backend(ReadOptions read_options, server::KeyRing keys)
    : keys_(std::move(keys)), models_(std::move(read_options)) {}

Backend::~Backend() {
  loader_.join();
  models_.free();
  strands_.join();
}

grpc::Status Backend::check_key(const Context& context) const {
  if (keys_.empty()) return grpc::Status::OK;
  const auto at = context.client_metadata().find("authorization");
  if (at == context.client_metadata().end())
    return {grpc::StatusCode::UNAUTHENTICATED, "the call has no 'authorization: Bearer TOKEN' among its metadata"};
  const std::string_view token = server::KeyRing::bearer({at->second.data(), at->second.size()});
  if (!token.empty() && keys_.find(token) != 0) return grpc::Status::OK;
  return {grpc::StatusCode::UNAUTHENTICATED, "the token is not valid"};
}

grpc::Status Backend::find_model(const Context& context, const std::string& identity,
                                 std::shared_ptr<Model>& model) const {
  if (const grpc::Status known = check_key(context); !known.ok()) return known;
  model = models_.current();
  if (model == nullptr && models_.is_loading()) return {grpc::StatusCode::UNAVAILABLE, "the model is being loaded"};
  if (model == nullptr) return {grpc::StatusCode::FAILED_PRECONDITION, "no model is loaded; call LoadModel first"};
  if (!identity.empty() && !model->identity.empty() && identity != model->identity)
    return {grpc::StatusCode::NOT_FOUND, fmt::format("model identity mismatch: '{}' is loaded, not '{}'",
                                                     model->identity.substr(0, 256), identity.substr(0, 256))};
  return grpc::Status::OK;
}

Backend::Reactor* Backend::at_once(Context* context, const std::function<grpc::Status()>& answer) {
  Reactor* const reactor = context->DefaultReactor();
  const grpc::Status known = check_key(*context);
  reactor->Finish(known.ok() ? answer() : known);
  return reactor;
}

template <class Asked>
Backend::Reactor* Backend::on_loader(Context* context, const Asked* asked, backend::Result* result,
                                     std::function<quire::Status(const Asked&)> work) {
  const auto call = UnaryCall<backend::Result>::make(strands_, result);
  if (const grpc::Status known = check_key(*context); !known.ok()) {
    call->post([call, known] { call->fail(known); });
    return call.get();
  }
  boost::asio::post(loader_, [call, asked = *asked, work = std::move(work)] {
    backend::Result said;
    const quire::Status done = work(asked);
    said.set_success(true);
    call->post([call, done, body = said.SerializeAsString()] {
      if (done.ok()) return call->send(server::HttpResponse{.body = body});
      call->send(server::to_api_error(done.error()));
    });
  });
  return call.get();
}

template <class Asked, class Response>
Backend::Reactor* Backend::on_pool(Context* context, const std::string& identity, const Asked* asked,
                                   Response* response, std::function<ApiStatus(const Asked&, Model&, Direct&)> work) {
  const auto call = UnaryCall<Response>::make(strands_, response);
  std::shared_ptr<Model> model;
  const grpc::Status found = find_model(*context, identity, model);
  if (!found.ok()) {
    call->post([call, found] { call->fail(found); });
    return call.get();
  }
  call->record().peer = context->peer();
  call->post([call, model, bytes = asked->ByteSizeLong(), asked = *asked, work = std::move(work)]() mutable {
    call->keep(model);
    Model& m = *model;
    m.api.handle_direct(
        bytes, [&m, asked = std::move(asked), work = std::move(work)](Direct& d) { return work(asked, m, d); }, call);
  });
  return call.get();
}

Backend::Reactor* Backend::Health(Context* context, const backend::HealthMessage*, backend::Reply* reply) {
  return at_once(context, [&] {
    const auto model = models_.current();
    const auto service = model != nullptr ? model->service.lock() : nullptr;
    if (service != nullptr)
      if (const ApiStatus healthy = service->health(); !healthy.ok()) return to_status(healthy.error());
    reply->set_message("OK");
    return grpc::Status::OK;
  });
}

Backend::Reactor* Backend::Status(Context* context, const backend::HealthMessage*, backend::StatusResponse* status) {
  return at_once(context, [&] {
    status->set_state(models_.state());
    const uint64_t bytes = resident_bytes();
    status->mutable_memory()->set_total(bytes);
    (*status->mutable_memory()->mutable_breakdown())["resident"] = bytes;
    return grpc::Status::OK;
  });
}

Backend::Reactor* Backend::LoadModel(Context* context, const backend::ModelOptions* asked, backend::Result* result) {
  return on_loader<backend::ModelOptions>(
      context, asked, result, [this](const backend::ModelOptions& options) { return models_.load(options); });
}

Backend::Reactor* Backend::Free(Context* context, const backend::HealthMessage* asked, backend::Result* result) {
  return on_loader<backend::HealthMessage>(context, asked, result, [this](const backend::HealthMessage&) {
    models_.free();
    return quire::Status();
  });
}

Backend::Reactor* Backend::ModelMetadata(Context* context, const backend::ModelOptions* asked,
                                         backend::ModelMetadataResponse* metadata) {
  return on_pool<backend::ModelOptions, backend::ModelMetadataResponse>(
      context, "", asked, metadata, [](const backend::ModelOptions&, Model&, Direct& call) -> ApiStatus {
        call.answer(metadata_of(call.model()).SerializeAsString());
        return {};
      });
}

Backend::Reactor* Backend::GetMetrics(Context* context, const backend::MetricsRequest*,
                                      backend::MetricsResponse* metrics) {
  return at_once(context, [&]() -> grpc::Status {
    std::shared_ptr<Model> model;
    if (const grpc::Status found = find_model(*context, "", model); !found.ok()) return found;
    metrics->set_tokens_per_second(model->last->tokens_per_second);
    metrics->set_tokens_generated(model->last->generated_tokens);
    metrics->set_prompt_tokens_processed(model->last->prompt_tokens);
    return grpc::Status::OK;
  });
}

Backend::Reactor* Backend::Predict(Context* context, const backend::PredictOptions* asked, backend::Reply* reply) {
  return on_pool<backend::PredictOptions, backend::Reply>(
      context, asked->modelidentity(), asked, reply,
      [](const backend::PredictOptions& a, Model& m, Direct& call) { return predict(a, false, m, call); });
}

grpc::ServerWriteReactor<backend::Reply>* Backend::PredictStream(Context* context,
                                                                 const backend::PredictOptions* asked) {
  const auto call = StreamCall::make(strands_, context);
  std::shared_ptr<Model> model;
  const grpc::Status found = find_model(*context, asked->modelidentity(), model);
  if (!found.ok()) {
    call->post([call, found] { call->end(found); });
    return call.get();
  }
  call->record().peer = context->peer();
  call->post([call, model, bytes = asked->ByteSizeLong(), asked = *asked]() mutable {
    call->keep(model);
    Model& m = *model;
    m.api.handle_direct(
        bytes, [&m, asked = std::move(asked)](Direct& d) { return predict(asked, true, m, d); }, call);
  });
  return call.get();
}

Backend::Reactor* Backend::Embedding(Context* context, const backend::PredictOptions* asked,
                                     backend::EmbeddingResult* result) {
  return on_pool<backend::PredictOptions, backend::EmbeddingResult>(
      context, asked->modelidentity(), asked, result,
      [](const backend::PredictOptions& a, Model&, Direct& call) -> ApiStatus {
        QUIRE_TRY(server::EmbeddingRequest request, read_embedding(a, call.model().limits()));
        return call.embed(std::move(request), embedding_bytes);
      });
}

Backend::Reactor* Backend::Rerank(Context* context, const backend::RerankRequest* asked,
                                  backend::RerankResult* result) {
  return on_pool<backend::RerankRequest, backend::RerankResult>(
      context, "", asked, result, [](const backend::RerankRequest& a, Model&, Direct& call) -> ApiStatus {
        QUIRE_TRY(server::ScoreRequest request, read_rerank(a, call.model().limits()));
        server::EmbeddingRequest embedding = std::move(request.embedding);
        return call.embed(std::move(embedding), [request = std::make_shared<server::ScoreRequest>(std::move(request))](
                                                    const server::EmbeddingPlan& plan, const Vectors& vectors) {
          return rerank_bytes(*request, plan, vectors);
        });
      });
}

Backend::Reactor* Backend::TokenizeString(Context* context, const backend::PredictOptions* asked,
                                          backend::TokenizationResponse* response) {
  return on_pool<backend::PredictOptions, backend::TokenizationResponse>(context, asked->modelidentity(), asked,
                                                                         response, tokenize);
}

Backend::Reactor* Backend::Detokenize(Context* context, const backend::DetokenizeRequest* asked,
                                      backend::DetokenizeResponse* response) {
  return on_pool<backend::DetokenizeRequest, backend::DetokenizeResponse>(context, "", asked, response, detokenize);
}

}  // namespace quire::localai
