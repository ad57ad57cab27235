#include "server/embedding_answer.h"

#include "server/protocol/base64.h"

namespace quire::server {

void EmbeddingAnswer::start(std::vector<Job> jobs) {
  vectors_.resize(jobs.size());
  running_ = jobs.size();
  responder_->record().prompt_tokens = plan_.prompt_tokens;
  auto ids = plan_.service->submit(
      std::move(jobs), [self = shared_from_this()](size_t index, const TokenEvent& event) {
        // Each job has one event: its end.
        self->responder_->post([self, index, event] { self->take(index, event); });
      });
  if (!ids.ok()) {
    over_ = true;
    return responder_->send(ids.error());
  }
  jobs_ = std::move(*ids);
  watch();
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
    if (const auto self = weak.lock())
      self->fail({503, "the request took longer than this server allows", "", "deadline_exceeded"});
  });
}

void EmbeddingAnswer::take(size_t index, const TokenEvent& event) {
  if (over_) return;
  if (const std::optional<ApiError> failure = failure_of(event)) return fail(*failure);
  vectors_.at(index) = event.embedding;
  cached_ += event.cached_tokens;
  if (index == 0 && event.prefix_miss != PrefixMiss::kNone) {
    responder_->record().prefix_miss = prefix_miss_name(event.prefix_miss);
    responder_->record().diverged_at = event.diverged_at;
  }
  if (--running_ == 0) complete();
}

void EmbeddingAnswer::complete() {
  over_ = true;
  responder_->record().cached_tokens = cached_;
  responder_->record().finish = finish_reason_name(FinishReason::kStop);
  Json data = Json::array();
  for (size_t i = 0; i < vectors_.size(); ++i) {
    const std::vector<float>& v = vectors_[i];
    data.push_back({{"object", "embedding"},
                    {"index", i},
                    {"embedding", plan_.base64 ? Json(base64(std::as_bytes(std::span(v)))) : Json(v)}});
  }
  const Json body = {
      {"object", "list"},
      {"data", std::move(data)},
      {"model", plan_.model_name},
      {"usage", {{"prompt_tokens", plan_.prompt_tokens}, {"total_tokens", plan_.prompt_tokens}}}};
  responder_->send(HttpResponse{.body = dump(body)});
}

void EmbeddingAnswer::fail(const ApiError& error) {
  if (over_) return;
  over_ = true;
  responder_->record().finish = error.code.empty() ? "error" : error.code;
  plan_.service->cancel(jobs_);
  responder_->send(error);
}

}  // namespace quire::server
