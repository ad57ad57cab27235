#include "server/embedding_answer.h"

#include <cmath>

#include "server/protocol/base64.h"

namespace quire::server {

namespace {

// The first numbers of a vector, brought back to length 1. Models that are trained for it have what matters most there.
void shorten(std::vector<float>& v, size_t dimensions) {
  if (dimensions >= v.size()) return;
  v.resize(dimensions);
  double squares = 0;
  for (const float x : v) squares += double{x} * x;
  if (squares <= 0) return;
  const double scale = 1 / std::sqrt(squares);
  for (float& x : v) x = static_cast<float>(x * scale);
}

}  // namespace

std::string ollama_embedding_body(const EmbeddingPlan&, const std::vector<std::vector<float>>& vectors) {
  return R"({"embedding":)" + dump(Json(vectors.front())) + '}';
}

std::string ollama_embeddings(const EmbeddingPlan& plan, const std::vector<std::vector<float>>& vectors) {
  std::string all;
  for (const std::vector<float>& v : vectors) all += (all.empty() ? "" : ",") + dump(Json(v));
  const auto nanoseconds =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - plan.arrived).count();
  return R"({"model":)" + dump(plan.model_name) + R"(,"embeddings":[)" + all +
         fmt::format(R"(],"total_duration":{},"load_duration":0,"prompt_eval_count":{}}})", nanoseconds,
                     plan.prompt_tokens);
}

std::string openai_embeddings(const EmbeddingPlan& plan, const std::vector<std::vector<float>>& vectors) {
  std::string data;
  for (size_t i = 0; i < vectors.size(); ++i) {
    const std::vector<float>& v = vectors[i];
    if (i > 0) data += ',';
    data += dump({{"object", "embedding"},
                  {"index", i},
                  {"embedding", plan.base64 ? Json(base64(std::as_bytes(std::span(v)))) : Json(v)}});
  }
  const Json usage = {{"prompt_tokens", plan.prompt_tokens}, {"total_tokens", plan.prompt_tokens}};
  return R"({"object":"list","data":[)" + data + R"(],"model":)" + dump(plan.model_name) + R"(,"usage":)" +
         dump(usage) + '}';
}

void EmbeddingAnswer::start(std::vector<Job> jobs) {
  vectors_.resize(jobs.size());
  running_ = jobs.size();
  if (plan_.ticket->cancelled()) return;
  const auto accepted =
      plan_.service->submit(std::move(jobs), [self = shared_from_this()](size_t index, const TokenEvent& event) {
        self->responder_->post([self, index, event] { self->arrive(index, event); });
      });
  try {
    responder_->post([self = shared_from_this(), accepted] { self->begin(accepted); });
  } catch (...) {
    if (accepted.ok()) plan_.service->cancel(*accepted);
    throw;
  }
}

// On the connection's executor. Events may have come before.
void EmbeddingAnswer::begin(const ApiResult<std::vector<JobId>>& accepted) {
  responder_->record().prompt_tokens = plan_.prompt_tokens;
  if (!accepted.ok()) {
    over_ = true;
    return responder_->send(accepted.error());
  }
  jobs_ = *accepted;
  if (plan_.ticket->cancelled()) {
    over_ = true;
    return plan_.service->cancel(jobs_);
  }
  begun_ = true;
  watch();
  for (const Arrival& a : std::exchange(early_, {})) take(a.index, a.event);
}

void EmbeddingAnswer::arrive(size_t index, const TokenEvent& event) {
  if (begun_) return take(index, event);
  if (!over_) early_.push_back({index, event});
}

void EmbeddingAnswer::watch() {
  responder_->on_disconnect([weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self || self->over_) return;
    self->responder_->record().finish = "disconnected";
    self->over_ = true;
    self->plan_.service->cancel(self->jobs_);
  });
  if (plan_.timeout.count() <= 0) return;
  responder_->on_deadline(plan_.timeout, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->fail(deadline_exceeded());
  });
}

void EmbeddingAnswer::take(size_t index, const TokenEvent& event) {
  if (over_) return;
  if (const auto* const begun = event.as<TokenEvent::Begun>()) {
    cached_ += begun->cached_tokens;
    if (index == 0 && begun->prefix_miss != PrefixMiss::kNone) {
      responder_->record().prefix_miss = prefix_miss_name(begun->prefix_miss);
      responder_->record().diverged_at = begun->diverged_at;
    }
  }
  if (const auto* const embedding = event.as<TokenEvent::Embedding>()) {
    vectors_.at(index) = embedding->values;
    shorten(vectors_[index], plan_.dimensions);
  }
  const auto* const end = event.as<TokenEvent::Ended>();
  if (end == nullptr) return;
  if (const std::optional<ApiError> failure = failure_of(*end)) return fail(*failure);
  if (--running_ == 0) complete();
}

// What was computed is written on a thread of the pool: of many inputs it is long.
void EmbeddingAnswer::complete() {
  over_ = true;
  responder_->record().cached_tokens = cached_;
  responder_->record().finish = finish_reason_name(FinishReason::kStop);
  RequestPool::Task writing{.client = plan_.pool_client, .ticket = plan_.ticket};
  writing.refuse = [responder = responder_](const ApiError& error) {
    responder->post([responder, error] { responder->send(error); });
  };
  writing.run = [self = shared_from_this()] {
    self->responder_->post([responder = self->responder_,
                            response = HttpResponse{.body = self->plan_.write(self->plan_, self->vectors_)}]() mutable {
      responder->send(std::move(response));
    });
  };
  if (const ApiStatus accepted = plan_.pool->finish(std::move(writing)); !accepted.ok())
    responder_->send(accepted.error());
}

void EmbeddingAnswer::fail(const ApiError& error) {
  if (over_) return;
  over_ = true;
  responder_->record().finish = error.code.empty() ? "error" : error.code;
  plan_.service->cancel(jobs_);
  responder_->send(error);
}

}  // namespace quire::server
