// One request's embeddings, from the jobs it becomes to the object it is told.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "server/protocol/json.h"
#include "server/request_pool.h"
#include "server/responder.h"
#include "server/service.h"

namespace quire::server {

enum class EmbeddingShape {
  kOpenAi,  // {"object", "data": [{"object", "index", "embedding"}], "model", "usage"}
  kOllama,  // {"model", "embeddings": [[...]], "total_duration", "load_duration", "prompt_eval_count"}
};

struct EmbeddingPlan {
  std::shared_ptr<Service> service;
  std::string model_name;  // as the client called it
  bool base64 = false;
  EmbeddingShape shape = EmbeddingShape::kOpenAi;
  int64_t prompt_tokens = 0;                        // of all inputs
  std::chrono::steady_clock::time_point arrived{};  // of the request
  std::chrono::milliseconds timeout{0};             // for the whole answer, from the start on; 0: any
  RequestPool::TicketPtr ticket;                    // whether anybody waits for the answer when it begins
  RequestPool* pool = nullptr;                      // writes the answer; outlives it
  std::string pool_client;                          // whose turn that is
};

class EmbeddingAnswer : public std::enable_shared_from_this<EmbeddingAnswer> {
 public:
  EmbeddingAnswer(EmbeddingPlan plan, std::shared_ptr<Responder> responder)
      : plan_(std::move(plan)), responder_(std::move(responder)) {}

  // Submits the jobs, one an input, and answers when all have ended. Any thread.
  void start(std::vector<Job> jobs);

 private:
  struct Arrival {
    size_t index;
    TokenEvent event;
  };

  void begin(const ApiResult<std::vector<JobId>>& accepted);
  void watch();
  void arrive(size_t index, const TokenEvent& event);
  void take(size_t index, const TokenEvent& event);
  void complete();
  std::string body() const;
  std::string ollama_body() const;
  // Ends the request with an error; what still runs of it is cancelled.
  void fail(const ApiError& error);

  EmbeddingPlan plan_;
  std::shared_ptr<Responder> responder_;
  std::vector<JobId> jobs_;
  std::vector<Arrival> early_;  // events that came before begin()
  std::vector<std::vector<float>> vectors_;
  size_t running_ = 0;
  int64_t cached_ = 0;
  bool begun_ = false;
  bool over_ = false;  // answered, failed, or nobody listens any more
};

}  // namespace quire::server
