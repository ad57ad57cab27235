// The one place where the server meets the engine: owns it and the thread that steps it, queues what it has no place
// for yet, and measures.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "server/engine_metrics.h"
#include "server/service.h"
#include "server/step_trace.h"

namespace quire::server {

class EngineService : public Service {
 public:
  struct Options {
    size_t max_queue = 256;            // jobs that wait besides those that run
    std::shared_ptr<StepTrace> trace;  // may be null
  };
  EngineService(std::unique_ptr<Engine> engine, Options options, std::shared_ptr<EngineMetrics> metrics);
  ~EngineService() override;  // stop()
  EngineService(const EngineService&) = delete;

  ApiResult<std::vector<JobId>> submit(std::vector<Job> jobs, EventSink sink) override;
  void cancel(std::span<const JobId> jobs) override;
  ApiStatus health() const override;
  void stop() override;
  // After stop(): keeps the prefix cache in a file (Engine::save_prefixes).
  Result<PrefixFileContent> save_prefixes(const std::string& path, int64_t max_bytes) {
    return engine_->save_prefixes(path, max_bytes);
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Entry {
    JobId id = 0;
    size_t index = 0;  // within its group
    int priority = 0;
    std::shared_ptr<const EventSink> sink;
    Request request;  // moved from when the engine has it
    int64_t prompt_tokens = 0;
    std::atomic<int64_t> generated{0};  // events may come on a thread of their own
    RequestId engine_id;
    Clock::time_point arrived, started, first_token, last_token;
  };
  using EntryPtr = std::shared_ptr<Entry>;

  ApiStatus check(const Request& r) const;
  ApiStatus check_room(size_t jobs);
  void run();
  void carry_out_cancels(std::span<const JobId> cancels);
  void hand_over();
  bool hand_over(const EntryPtr& entry);
  void on_event(const EntryPtr& entry, const TokenEvent& event);
  void measure_end(const Entry& entry, FinishReason reason);
  void on_step(const StepRecord& step);
  void measure_step();
  void publish_load();  // with the mutex held
  void count_prefixes(const StepStats& s);
  void end(const EntryPtr& entry, FinishReason reason, std::optional<Error> error = std::nullopt);
  int retry_after_seconds() const;

  std::unique_ptr<Engine> engine_;
  Options options_;
  std::shared_ptr<EngineMetrics> metrics_;
  size_t max_running_;

  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  JobId next_id_ = 1;
  std::map<std::pair<int, JobId>, EntryPtr> waiting_;  // in the order of service
  std::map<JobId, EntryPtr> running_;                  // those that the engine has
  std::vector<JobId> cancels_;
  double mean_seconds_ = 0.0;  // of requests from start to end, recent ones counting more

  StepStats seen_;  // as of the last step; guarded like the queues
  std::thread thread_;
};

}  // namespace quire::server
