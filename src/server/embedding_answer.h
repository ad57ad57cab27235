// One request's embeddings, from the jobs it becomes to the object it is told.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/protocol/json.h"
#include "server/request_pool.h"
#include "server/responder.h"
#include "server/service.h"

namespace quire::server {

struct EmbeddingPlan;
// The body of the answer, from all inputs' vectors. On a thread of the pool.
using WriteVectors =
    std::function<std::string(const EmbeddingPlan& plan, const std::vector<std::vector<float>>& vectors)>;
// {"object", "data": [{"object", "index", "embedding"}], "model", "usage"}
std::string openai_embeddings(const EmbeddingPlan& plan, const std::vector<std::vector<float>>& vectors);
// {"model", "embeddings": [[...]], "total_duration", "load_duration", "prompt_eval_count"}
std::string ollama_embeddings(const EmbeddingPlan& plan, const std::vector<std::vector<float>>& vectors);
// {"embedding": [...]}, of the older route
std::string ollama_embedding_body(const EmbeddingPlan& plan, const std::vector<std::vector<float>>& vectors);

struct EmbeddingPlan {
  std::shared_ptr<Service> service;
  std::string model_name;  // as the client called it
  size_t dimensions = 0;   // of a vector as it is told
  bool base64 = false;
  WriteVectors write;
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
