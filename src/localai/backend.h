// The calls of LocalAI's backend interface (backend.proto).
#pragma once

#include <backend.grpc.pb.h>

#include <boost/asio/thread_pool.hpp>

#include "localai/call.h"
#include "localai/model.h"
#include "server/auth.h"

namespace quire::localai {

// What calls bring comes as bytes, and is read on the threads that answer them (messages.h).
template <class Base>
using RawModelCalls = backend::Backend::WithRawCallbackMethod_LoadModel<backend::Backend::WithRawCallbackMethod_Free<
    backend::Backend::WithRawCallbackMethod_ModelMetadata<backend::Backend::WithRawCallbackMethod_GetMetrics<
        backend::Backend::WithRawCallbackMethod_Health<backend::Backend::WithRawCallbackMethod_Status<Base>>>>>>;
template <class Base>
using RawAnswerCalls = backend::Backend::WithRawCallbackMethod_Predict<
    backend::Backend::WithRawCallbackMethod_PredictStream<backend::Backend::WithRawCallbackMethod_Embedding<
        backend::Backend::WithRawCallbackMethod_Rerank<backend::Backend::WithRawCallbackMethod_TokenizeString<
            backend::Backend::WithRawCallbackMethod_Detokenize<Base>>>>>>;

class Backend final : public RawModelCalls<RawAnswerCalls<backend::Backend::Service>> {
 public:
  // `keys`: of which calls must show one; empty: everybody may call.
  Backend(ReadOptions read_options, server::KeyRing keys);
  // No call may be in progress any more.
  ~Backend() override;

  ModelHolder& models() { return models_; }

  using Context = grpc::CallbackServerContext;
  using Reactor = grpc::ServerUnaryReactor;
  using Bytes = grpc::ByteBuffer;
  Reactor* Health(Context* context, const Bytes*, Bytes* reply) override;
  Reactor* Status(Context* context, const Bytes*, Bytes* status) override;
  Reactor* LoadModel(Context* context, const Bytes* asked, Bytes* result) override;
  Reactor* Free(Context* context, const Bytes*, Bytes* result) override;
  Reactor* ModelMetadata(Context* context, const Bytes*, Bytes* metadata) override;
  Reactor* GetMetrics(Context* context, const Bytes*, Bytes* metrics) override;
  Reactor* Predict(Context* context, const Bytes* asked, Bytes* reply) override;
  grpc::ServerWriteReactor<Bytes>* PredictStream(Context* context, const Bytes* asked) override;
  Reactor* Embedding(Context* context, const Bytes* asked, Bytes* result) override;
  Reactor* Rerank(Context* context, const Bytes* asked, Bytes* result) override;
  Reactor* TokenizeString(Context* context, const Bytes* asked, Bytes* response) override;
  Reactor* Detokenize(Context* context, const Bytes* asked, Bytes* response) override;

 private:
  grpc::Status check_key(const Context& context) const;
  grpc::Status find_model(const Context& context, std::shared_ptr<Model>& model) const;
  // `answer` makes the response.
  template <class Response>
  Reactor* at_once(Context* context, Bytes* response, const std::function<grpc::Status(Response&)>& answer);
  // One after the other, on the thread that loads.
  Reactor* on_loader(Context* context, Bytes* result, std::function<quire::Status()> work);
  // On a thread of the model's pool.
  template <class Asked>
  using Work = std::function<server::ApiStatus(const Asked&, Model&, server::Api::Direct&)>;
  template <class Asked>
  Reactor* on_pool(Context* context, const Bytes* asked, Bytes* response, Work<Asked> work);
  template <class Asked>
  static void hand_over(const std::shared_ptr<Call>& call, const std::shared_ptr<Model>& model, const Context& context,
                        const Bytes& asked, Work<Asked> work);

  const server::KeyRing keys_;
  boost::asio::thread_pool strands_{2};  // where calls are answered
  boost::asio::thread_pool loader_{1};
  ModelHolder models_;
};

}  // namespace quire::localai
