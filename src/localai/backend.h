// The calls of LocalAI's backend interface (backend.proto).
#pragma once

#include <backend.grpc.pb.h>

#include <boost/asio/thread_pool.hpp>

#include "localai/call.h"
#include "localai/model.h"
#include "server/auth.h"

namespace quire::localai {

class Backend final : public backend::Backend::CallbackService {
 public:
  // `keys`: of which calls must show one; empty: everybody may call.
  Backend(ReadOptions read_options, server::KeyRing keys);
  // No call may be in progress any more.
  ~Backend() override;

  ModelHolder& models() { return models_; }

  using Context = grpc::CallbackServerContext;
  using Reactor = grpc::ServerUnaryReactor;
  Reactor* Health(Context* context, const backend::HealthMessage*, backend::Reply* reply) override;
  Reactor* Status(Context* context, const backend::HealthMessage*, backend::StatusResponse* status) override;
  Reactor* LoadModel(Context* context, const backend::ModelOptions* asked, backend::Result* result) override;
  Reactor* Free(Context* context, const backend::HealthMessage*, backend::Result* result) override;
  Reactor* ModelMetadata(Context* context, const backend::ModelOptions*,
                         backend::ModelMetadataResponse* metadata) override;
  Reactor* GetMetrics(Context* context, const backend::MetricsRequest*, backend::MetricsResponse* metrics) override;
  Reactor* Predict(Context* context, const backend::PredictOptions* asked, backend::Reply* reply) override;
  grpc::ServerWriteReactor<backend::Reply>* PredictStream(Context* context,
                                                          const backend::PredictOptions* asked) override;
  Reactor* Embedding(Context* context, const backend::PredictOptions* asked, backend::EmbeddingResult* result) override;
  Reactor* Rerank(Context* context, const backend::RerankRequest* asked, backend::RerankResult* result) override;
  Reactor* TokenizeString(Context* context, const backend::PredictOptions* asked,
                          backend::TokenizationResponse* response) override;
  Reactor* Detokenize(Context* context, const backend::DetokenizeRequest* asked,
                      backend::DetokenizeResponse* response) override;

 private:
  grpc::Status check_key(const Context& context) const;
  // The model that a call is for. `identity`: the one that the client takes it for; empty: whatever there is.
  grpc::Status find_model(const Context& context, const std::string& identity, std::shared_ptr<Model>& model) const;
  Reactor* at_once(Context* context, const std::function<grpc::Status()>& answer);
  // One after the other, on the thread that loads.
  template <class Asked>
  Reactor* on_loader(Context* context, const Asked* asked, backend::Result* result,
                     std::function<quire::Status(const Asked&)> work);
  // On a thread of the model's pool.
  template <class Asked, class Response>
  Reactor* on_pool(Context* context, const std::string& identity, const Asked* asked, Response* response,
                   std::function<server::ApiStatus(const Asked&, Model&, server::Api::Direct&)> work);

  const server::KeyRing keys_;
  boost::asio::thread_pool strands_{2};  // where calls are answered
  boost::asio::thread_pool loader_{1};
  ModelHolder models_;
};

}  // namespace quire::localai
