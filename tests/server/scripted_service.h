// A service without a model: it answers each job with the texts that a test says. What the HTTP side makes of texts,
// ends and errors is tested with it, whatever a model would write.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "server/service.h"

namespace quire::test {

class ScriptedService final : public server::Service {
 public:
  // One job's answer: an event for each text, then the end, unless it is left open.
  struct Script {
    std::vector<std::string> texts;
    FinishReason finish = FinishReason::kStop;  // kNone: nothing follows until the job is cancelled
    std::optional<Error> error = std::nullopt;  // with kError
    int64_t drafts = 0, drafts_accepted = 0;
  };

  ScriptedService() : thread_([this] { deliver(); }) {}
  ~ScriptedService() override {
    stop();
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  // What the next jobs answer, in the order in which they come.
  void will_answer(Script script) {
    const std::lock_guard lock(mutex_);
    scripts_.push_back(std::move(script));
  }
  // What submit() refuses everything with from now on; nothing: it takes jobs.
  void will_refuse(std::optional<server::ApiError> error) {
    const std::lock_guard lock(mutex_);
    refusal_ = std::move(error);
  }
  void set_health(server::ApiStatus health) {
    const std::lock_guard lock(mutex_);
    health_ = std::move(health);
  }
  std::vector<server::JobId> cancelled() const {
    const std::lock_guard lock(mutex_);
    return cancelled_;
  }
  std::vector<Request> requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
  }
  bool stopped() const {
    const std::lock_guard lock(mutex_);
    return stopped_;
  }

  server::ApiResult<std::vector<server::JobId>> submit(std::vector<server::Job> jobs, server::EventSink sink) override {
    const std::lock_guard lock(mutex_);
    if (refusal_) return *refusal_;
    const auto shared = std::make_shared<server::EventSink>(std::move(sink));
    std::vector<server::JobId> ids;
    for (size_t i = 0; i < jobs.size(); ++i) {
      requests_.push_back(jobs[i].request);
      ids.push_back(next_id_++);
      Running running{.id = ids.back(), .index = i, .sink = shared};
      if (!scripts_.empty()) {
        running.script = std::move(scripts_.front());
        scripts_.pop_front();
      }
      running_.push_back(std::move(running));
    }
    changed_.notify_all();
    return ids;
  }
  void cancel(std::span<const server::JobId> jobs) override {
    const std::lock_guard lock(mutex_);
    cancelled_.insert(cancelled_.end(), jobs.begin(), jobs.end());
    for (Running& r : running_)
      if (std::find(jobs.begin(), jobs.end(), r.id) != jobs.end()) end(r);
    changed_.notify_all();
  }
  server::ApiStatus health() const override {
    const std::lock_guard lock(mutex_);
    return health_;
  }
  void stop() override {
    std::unique_lock lock(mutex_);
    stopped_ = true;
    for (Running& r : running_) end(r);
    changed_.notify_all();
    changed_.wait(lock, [&] { return running_.empty(); });
  }

 private:
  struct Running {
    server::JobId id;
    size_t index;
    std::shared_ptr<server::EventSink> sink;
    Script script;
    size_t next = 0;
  };
  static void end(Running& r) {
    r.script = {.texts = {}, .finish = FinishReason::kCancelled};
    r.next = 0;
  }
  static bool is_ready(const Running& r) {
    return r.next < r.script.texts.size() || r.script.finish != FinishReason::kNone;
  }

  // On its own thread, one event after the other.
  void deliver() {
    std::unique_lock lock(mutex_);
    for (;;) {
      const auto ready = [&] { return std::find_if(running_.begin(), running_.end(), is_ready); };
      changed_.wait(lock, [&] { return ended_ || ready() != running_.end(); });
      const auto r = ready();
      if (r == running_.end()) return;
      TokenEvent event{.request = {}, .what = TokenEvent::Ended{}};
      const size_t index = r->index;
      const std::shared_ptr<server::EventSink> sink = r->sink;
      if (r->next < r->script.texts.size()) {
        event.what = TokenEvent::Token{.id = 65, .text = r->script.texts[r->next++]};
      } else {
        event.what = TokenEvent::Ended{.finish = r->script.finish,
                                       .drafts = r->script.drafts,
                                       .drafts_accepted = r->script.drafts_accepted,
                                       .error = r->script.error};
        running_.erase(r);
      }
      lock.unlock();
      (*sink)(index, event);
      lock.lock();
      changed_.notify_all();
    }
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Script> scripts_;
  std::deque<Running> running_;
  std::vector<server::JobId> cancelled_;
  std::vector<Request> requests_;
  std::optional<server::ApiError> refusal_;
  server::ApiStatus health_;
  bool stopped_ = false, ended_ = false;
  server::JobId next_id_ = 1;
  std::thread thread_;
};

}  // namespace quire::test
