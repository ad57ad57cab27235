#include "localai/backend.h"

#include <new>
#include <numeric>

#include "core/heap.h"
#include "localai/messages.h"
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

grpc::Status Backend::find_model(const Context& context, std::shared_ptr<Model>& model) const {
  if (const grpc::Status known = check_key(context); !known.ok()) return known;
  model = models_.current();
  if (model == nullptr && models_.is_loading()) return {grpc::StatusCode::UNAVAILABLE, "the model is being loaded"};
  if (model == nullptr) return {grpc::StatusCode::FAILED_PRECONDITION, "no model is loaded; call LoadModel first"};
  return grpc::Status::OK;
}

template <class Response>
Backend::Reactor* Backend::at_once(Context* context, Bytes* response,
                                   const std::function<grpc::Status(Response&)>& answer) {
  Reactor* const reactor = context->DefaultReactor();
  grpc::Status done = check_key(*context);
  if (done.ok()) {
    Response message;
    done = answer(message);
    *response = to_buffer(message.SerializeAsString());
  }
  reactor->Finish(done);
  return reactor;
}

Backend::Reactor* Backend::on_loader(Context* context, Bytes* result, std::function<quire::Status()> work) {
  const auto call = UnaryCall::make(strands_, result);
  if (const grpc::Status known = check_key(*context); !known.ok()) {
    call->post([call, known] { call->end(known); });
    return call.get();
  }
  boost::asio::post(loader_, [call, work = std::move(work)] {
    const quire::Status done = [&]() -> quire::Status {
      try {
        return work();
      } catch (const std::bad_alloc&) {
        return capacity_error("out of memory");
      }
    }();
    backend::Result said;
    said.set_success(true);
    call->post([call, done, body = said.SerializeAsString()] {
      if (done.ok()) return call->send(server::HttpResponse{.body = body});
      call->send(server::to_api_error(done.error()));
    });
  });
  return call.get();
}

namespace {

// Whether the client takes the model for the one that it is.
ApiStatus check_identity(const std::string& asked, const Model& model) {
  if (asked.empty() || model.identity.empty() || asked == model.identity) return {};
  return server::ApiError{404,
                          fmt::format("model identity mismatch: '{}' is loaded, not '{}'",
                                      model.identity.substr(0, 256), asked.substr(0, 256)),
                          "", ""};
}

}  // namespace

// The message is read on the pool's thread, and waits for that as its bytes.
template <class Asked>
void Backend::hand_over(const std::shared_ptr<Call>& call, const std::shared_ptr<Model>& model, const Context& context,
                        const Bytes& asked, Work<Asked> work) {
  call->record().peer = context.peer();
  call->post([call, model, asked, work = std::move(work)]() mutable {
    call->keep(model);
    Model& m = *model;
    const size_t bytes = asked.Length();
    m.api.handle_direct(
        bytes,
        [&m, asked = std::move(asked), work = std::move(work)](Direct& d) mutable -> ApiStatus {
          Asked message;
          QUIRE_CHECKED(read_message(asked, message));
          asked.Clear();
          if constexpr (std::is_same_v<Asked, backend::PredictOptions>)
            QUIRE_CHECKED(check_identity(message.modelidentity(), m));
          return work(message, m, d);
        },
        call);
  });
}

template <class Asked>
Backend::Reactor* Backend::on_pool(Context* context, const Bytes* asked, Bytes* response, Work<Asked> work) {
  const auto call = UnaryCall::make(strands_, response);
  std::shared_ptr<Model> model;
  const grpc::Status found = find_model(*context, model);
  if (found.ok())
    hand_over<Asked>(call, model, *context, *asked, std::move(work));
  else
    call->post([call, found] { call->end(found); });
  return call.get();
}

Backend::Reactor* Backend::Health(Context* context, const Bytes*, Bytes* reply) {
  return at_once<backend::Reply>(context, reply, [&](backend::Reply& r) {
    const auto model = models_.current();
    const auto service = model != nullptr ? model->service.lock() : nullptr;
    if (service != nullptr)
      if (const ApiStatus healthy = service->health(); !healthy.ok()) return to_status(healthy.error());
    r.set_message("OK");
    return grpc::Status::OK;
  });
}

Backend::Reactor* Backend::Status(Context* context, const Bytes*, Bytes* status) {
  return at_once<backend::StatusResponse>(context, status, [&](backend::StatusResponse& r) {
    r.set_state(models_.state());
    const auto bytes = static_cast<uint64_t>(resident_memory());
    r.mutable_memory()->set_total(bytes);
    (*r.mutable_memory()->mutable_breakdown())["resident"] = bytes;
    return grpc::Status::OK;
  });
}

Backend::Reactor* Backend::LoadModel(Context* context, const Bytes* asked, Bytes* result) {
  return on_loader(context, result, [this, asked = *asked]() -> quire::Status {
    backend::ModelOptions options;
    if (const ApiStatus read = read_message(asked, options); !read.ok())
      return request_error("{}", read.error().message);
    return models_.load(options);
  });
}

Backend::Reactor* Backend::Free(Context* context, const Bytes*, Bytes* result) {
  return on_loader(context, result, [this] {
    models_.free();
    return quire::Status();
  });
}

Backend::Reactor* Backend::ModelMetadata(Context* context, const Bytes*, Bytes* metadata) {
  static const Bytes kNothing;  // what is asked of is the model that is loaded
  return on_pool<backend::ModelOptions>(context, &kNothing, metadata,
                                        [](const backend::ModelOptions&, Model&, Direct& call) -> ApiStatus {
                                          call.answer(metadata_of(call.model()).SerializeAsString());
                                          return {};
                                        });
}

Backend::Reactor* Backend::GetMetrics(Context* context, const Bytes*, Bytes* metrics) {
  return at_once<backend::MetricsResponse>(context, metrics, [&](backend::MetricsResponse& r) -> grpc::Status {
    std::shared_ptr<Model> model;
    if (const grpc::Status found = find_model(*context, model); !found.ok()) return found;
    r.set_tokens_per_second(model->last->tokens_per_second);
    r.set_tokens_generated(model->last->generated_tokens);
    r.set_prompt_tokens_processed(model->last->prompt_tokens);
    return grpc::Status::OK;
  });
}

Backend::Reactor* Backend::Predict(Context* context, const Bytes* asked, Bytes* reply) {
  return on_pool<backend::PredictOptions>(
      context, asked, reply,
      [](const backend::PredictOptions& a, Model& m, Direct& call) { return predict(a, false, m, call); });
}

grpc::ServerWriteReactor<Backend::Bytes>* Backend::PredictStream(Context* context, const Bytes* asked) {
  const auto call = StreamCall::make(strands_, context);
  std::shared_ptr<Model> model;
  const grpc::Status found = find_model(*context, model);
  if (found.ok())
    hand_over<backend::PredictOptions>(
        call, model, *context, *asked,
        [](const backend::PredictOptions& a, Model& m, Direct& d) { return predict(a, true, m, d); });
  else
    call->post([call, found] { call->end(found); });
  return call.get();
}

Backend::Reactor* Backend::Embedding(Context* context, const Bytes* asked, Bytes* result) {
  return on_pool<backend::PredictOptions>(
      context, asked, result, [](const backend::PredictOptions& a, Model&, Direct& call) -> ApiStatus {
        QUIRE_TRY(server::EmbeddingRequest request, read_embedding(a, call.model().limits()));
        return call.embed(std::move(request), embedding_bytes);
      });
}

Backend::Reactor* Backend::Rerank(Context* context, const Bytes* asked, Bytes* result) {
  return on_pool<backend::RerankRequest>(
      context, asked, result, [](const backend::RerankRequest& a, Model&, Direct& call) -> ApiStatus {
        QUIRE_TRY(server::ScoreRequest request, read_rerank(a, call.model().limits()));
        server::EmbeddingRequest embedding = std::move(request.embedding);
        return call.embed(std::move(embedding), [request = std::make_shared<server::ScoreRequest>(std::move(request))](
                                                    const server::EmbeddingPlan& plan, const Vectors& vectors) {
          return rerank_bytes(*request, plan, vectors);
        });
      });
}

Backend::Reactor* Backend::TokenizeString(Context* context, const Bytes* asked, Bytes* response) {
  return on_pool<backend::PredictOptions>(context, asked, response, tokenize);
}

Backend::Reactor* Backend::Detokenize(Context* context, const Bytes* asked, Bytes* response) {
  return on_pool<backend::DetokenizeRequest>(context, asked, response, detokenize);
}

}  // namespace quire::localai
