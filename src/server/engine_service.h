// The one place where the server meets the engine: owns it and the thread that steps it, says how much may wait there,
// and measures. Who waits is the engine's affair: it has every job from the moment that it is accepted.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/engine.h"
#include "server/engine_metrics.h"
#include "server/service.h"
#include "server/step_trace.h"

namespace quire::server {

class EngineService : public Service {
 public:
  struct Options {
    size_t max_queue = 256;            // jobs that wait besides those that run; the engine takes as many
    std::shared_ptr<StepTrace> trace;  // may be null
    int number = 0;                    // of several that serve the model, which one
  };
  EngineService(std::unique_ptr<Engine> engine, Options options, std::shared_ptr<EngineMetrics> metrics);
  ~EngineService() override;  // stop()
  EngineService(const EngineService&) = delete;

  ApiResult<std::vector<JobId>> submit(std::vector<Job> jobs, EventSink sink) override;
  void cancel(std::span<const JobId> jobs) override;
  ApiStatus health() const override;
  void stop() override;
  // Any thread: for what it says of itself to any.
  const Engine& engine() const { return *engine_; }
  // Any thread: jobs that were accepted and have not ended.
  int64_t unfinished() const { return unfinished_now_; }
  // After stop(): keeps the prefix cache in a file (Engine::save_prefixes).
  Result<PrefixFileContent> save_prefixes(const std::string& path, int64_t max_bytes) {
    return engine_->save_prefixes(path, max_bytes);
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr uint64_t kGroups = uint64_t{1} << 63;
  struct Entry {
    size_t index = 0;  // within its group
    uint64_t client = 0;
    bool counts = true;  // Job::counts
    bool ended = false;  // its end was counted
    std::shared_ptr<const EventSink> sink;
    int64_t prompt_tokens = 0;
    int64_t generated = 0;
    Clock::time_point arrived, first_token, last_token;
  };
  using EntryPtr = std::shared_ptr<Entry>;

  ApiStatus reserve(uint64_t& client, size_t jobs, size_t with_uncounted);
  std::vector<Engine::Submission> submissions_of(std::vector<Job>& jobs, uint64_t client, EventSink sink);
  void give_back(uint64_t client, size_t jobs);
  // The end of a submit() that reserve() let in: what was reserved goes back unless the engine took the jobs.
  void settle(bool taken, uint64_t client, size_t jobs, size_t with_uncounted);
  void run();
  void on_event(const EntryPtr& entry, const TokenEvent& event);
  void measure_token(Entry& entry);
  void measure_end(const Entry& entry, const TokenEvent::Ended& end);
  void on_step(const StepRecord& step);
  void measure_step();
  void publish_load();  // with the mutex held
  void count_prefixes(const StepStats& s);
  int retry_after_seconds() const;

  std::unique_ptr<Engine> engine_;
  Options options_;
  std::shared_ptr<EngineMetrics> metrics_;
  size_t max_running_;

  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  size_t submitting_ = 0;                         // calls of submit() that are not back from the engine
  size_t unfinished_ = 0;                         // jobs that were accepted and have not ended
  size_t jobs_ = 0;                               // of them, those that count
  std::unordered_map<uint64_t, size_t> jobs_of_;  // of each client, likewise
  uint64_t next_group_ = kGroups;                 // clients that come once are numbered from here on
  double mean_seconds_ = 0.0;                     // of requests from start to end, recent ones counting more

  std::atomic<int64_t> unfinished_now_{0};  // unfinished_, for whoever has not the mutex

  StepStats seen_;  // as of the last step; guarded like the queues
  std::thread thread_;
};

}  // namespace quire::server
