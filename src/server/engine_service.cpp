#include "server/engine_service.h"

#include <algorithm>
#include <cmath>

#include "core/log.h"
#include "tokenizer/stop_matcher.h"

namespace quire::server {
namespace {

double seconds(std::chrono::steady_clock::duration d) {
  return std::chrono::duration<double>(d).count();
}

}  // namespace

EngineService::EngineService(std::unique_ptr<Engine> engine, Options options,
                             std::shared_ptr<EngineMetrics> metrics)
    : engine_(std::move(engine)),
      options_(std::move(options)),
      metrics_(std::move(metrics)),
      max_running_(static_cast<size_t>(engine_->options().max_sequences)) {
  engine_->observe_steps([this](const StepRecord& step) { on_step(step); });
  thread_ = std::thread([this] { run(); });
}

EngineService::~EngineService() {
  stop();
}

void EngineService::stop() {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(stop_, true)) return;
  }
  wake_.notify_one();
  thread_.join();
  // What the engine has ends there; no listener is called from then on.
  std::vector<RequestId> running;
  std::vector<EntryPtr> left;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, entry] : running_) running.push_back(entry->engine_id);
    for (const auto& [key, entry] : waiting_) left.push_back(entry);
    waiting_.clear();
  }
  for (const RequestId id : running) engine_->cancel(id);
  while (engine_->busy()) engine_->step();
  for (const EntryPtr& entry : left) end(entry, FinishReason::kCancelled);
}

ApiStatus EngineService::health() const {
  if (const std::optional<Error> lost = engine_->lost())
    return ApiError{503, lost->message + "; the server must be started again", "", "device_lost"};
  return {};
}

ApiStatus EngineService::check(const Request& r) const {
  QUIRE_CHECKED(r.sampling.validate(engine_->model().model->config().vocab));
  if (const Result<StopMatcher> stop = StopMatcher::create(r.stop); !stop.ok())
    return bad_field("stop", "invalid_value", "{}", stop.error().message);
  return {};
}

int EngineService::retry_after_seconds() const {
  const double rounds = static_cast<double>(waiting_.size()) / static_cast<double>(max_running_);
  return static_cast<int>(std::clamp(std::ceil(mean_seconds_ * rounds), 1.0, 60.0));
}

ApiStatus EngineService::check_room(size_t jobs) {
  if (stop_) return ApiError{503, "the server is shutting down", "", "shutting_down"};
  const size_t most = options_.max_queue + max_running_;
  if (jobs > most)
    return bad_field("n", "invalid_value", "the request asks for {} answers; this server takes at most {}",
                     jobs, most);
  const size_t places = max_running_ - std::min(max_running_, running_.size());
  if (waiting_.size() + jobs <= options_.max_queue + places) return {};
  metrics_->rejected.add();
  return ApiError{
      .status = 429,
      .message = fmt::format("the queue is full: {} requests wait; try again later", waiting_.size()),
      .retry_after = retry_after_seconds()};
}

ApiResult<std::vector<JobId>> EngineService::submit(std::vector<Job> jobs, EventSink sink) {
  QUIRE_CHECKED(health());
  for (const Job& job : jobs) QUIRE_CHECKED(check(job.request));
  const auto shared_sink = std::make_shared<const EventSink>(std::move(sink));
  std::vector<JobId> ids;
  {
    const std::lock_guard lock(mutex_);
    QUIRE_CHECKED(check_room(jobs.size()));
    for (size_t i = 0; i < jobs.size(); ++i) {
      auto entry = std::make_shared<Entry>();
      entry->id = next_id_++;
      entry->index = i;
      entry->priority = jobs[i].priority;
      entry->sink = shared_sink;
      entry->request = std::move(jobs[i].request);
      entry->prompt_tokens = static_cast<int64_t>(entry->request.prompt.size());
      entry->arrived = Clock::now();
      if (!entry->request.embed)
        metrics_->params_max_tokens.observe(static_cast<double>(entry->request.max_tokens));
      ids.push_back(entry->id);
      waiting_.emplace(std::pair(entry->priority, entry->id), std::move(entry));
    }
    metrics_->waiting.set(static_cast<double>(waiting_.size()));
  }
  metrics_->params_n.observe(static_cast<double>(jobs.size()));
  wake_.notify_one();
  return ids;
}

void EngineService::cancel(std::span<const JobId> jobs) {
  {
    const std::lock_guard lock(mutex_);
    cancels_.insert(cancels_.end(), jobs.begin(), jobs.end());
  }
  wake_.notify_one();
}

void EngineService::run() {
  measure_step();  // what a file brought into the prefix cache
  for (bool sound = true;;) {
    std::vector<JobId> cancels;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stop_ || !waiting_.empty() || !running_.empty() || !cancels_.empty(); });
      if (stop_) return;
      cancels.swap(cancels_);
    }
    carry_out_cancels(cancels);
    hand_over();
    const bool worked = engine_->step();
    measure_step();
    if (sound && engine_->lost()) {
      sound = false;
      log_error(health().error().message);
    }
    if (worked) continue;
    // Nothing to compute just now although requests run: their results are on the way.
    std::unique_lock lock(mutex_);
    if (!running_.empty()) wake_.wait_for(lock, std::chrono::milliseconds(1));
  }
}

void EngineService::carry_out_cancels(std::span<const JobId> cancels) {
  for (const JobId id : cancels) {
    EntryPtr waiting;
    RequestId running;
    {
      const std::lock_guard lock(mutex_);
      if (const auto at = running_.find(id); at != running_.end()) running = at->second->engine_id;
      const auto at =
          std::find_if(waiting_.begin(), waiting_.end(), [&](const auto& w) { return w.second->id == id; });
      if (at != waiting_.end()) {
        waiting = at->second;
        waiting_.erase(at);
      }
    }
    if (running.valid()) engine_->cancel(running);
    if (waiting) end(waiting, FinishReason::kCancelled);
  }
}

void EngineService::hand_over() {
  for (;;) {
    EntryPtr entry;
    {
      const std::lock_guard lock(mutex_);
      if (waiting_.empty() || running_.size() >= max_running_) return;
      entry = waiting_.begin()->second;
      waiting_.erase(waiting_.begin());
      running_.emplace(entry->id, entry);
    }
    if (!hand_over(entry)) return;
  }
}

// False when the engine has no room just now; the entry waits again then.
bool EngineService::hand_over(const EntryPtr& entry) {
  entry->started = Clock::now();
  Request request = entry->request;
  Result<RequestId> id =
      engine_->submit(std::move(request), [this, entry](const TokenEvent& e) { on_event(entry, e); });
  std::unique_lock lock(mutex_);
  if (id.ok()) {
    entry->engine_id = *id;
    entry->request = {};
    return true;
  }
  running_.erase(entry->id);
  if (id.error().fault == Fault::kCapacity && !running_.empty()) {
    waiting_.emplace(std::pair(entry->priority, entry->id), entry);
    return false;
  }
  lock.unlock();
  end(entry, FinishReason::kError, id.take_error());
  return true;
}

void EngineService::on_event(const EntryPtr& entry, const TokenEvent& event) {
  if (event.token >= 0) {
    const auto now = Clock::now();
    if (entry->generated == 0) {
      entry->first_token = now;
      metrics_->first_token.observe(seconds(now - entry->arrived));
      metrics_->prompt_tokens.add(static_cast<double>(entry->prompt_tokens));
    } else {
      metrics_->inter_token.observe(seconds(now - entry->last_token));
    }
    entry->last_token = now;
    ++entry->generated;
    metrics_->generation_tokens.add();
  }
  if (!event.embedding.empty()) metrics_->prompt_tokens.add(static_cast<double>(entry->prompt_tokens));
  if (event.finish != FinishReason::kNone) {
    {
      const std::lock_guard lock(mutex_);
      running_.erase(entry->id);
      publish_load();  // events may come after the last step: gauges go back to zero here
      const double took = seconds(Clock::now() - entry->started);
      mean_seconds_ = mean_seconds_ == 0.0 ? took : 0.9 * mean_seconds_ + 0.1 * took;
    }
    measure_end(*entry, event.finish);
  }
  (*entry->sink)(entry->index, event);
}

// For requests that the engine does not have.
void EngineService::end(const EntryPtr& entry, FinishReason reason, std::optional<Error> error) {
  measure_end(*entry, reason);
  (*entry->sink)(entry->index, TokenEvent{.finish = reason, .error = std::move(error)});
}

void EngineService::measure_end(const Entry& e, FinishReason reason) {
  const auto now = Clock::now();
  metrics_->finished(reason).add();
  metrics_->latency.observe(seconds(now - e.arrived));
  metrics_->request_prompt_tokens.observe(static_cast<double>(e.prompt_tokens));
  metrics_->request_generation_tokens.observe(static_cast<double>(e.generated.load()));
  if (e.started == Clock::time_point{}) return;
  metrics_->queue_time.observe(seconds(e.started - e.arrived));
  metrics_->inference_time.observe(seconds(now - e.started));
  if (e.generated == 0) return;
  metrics_->prefill_time.observe(seconds(e.first_token - e.started));
  metrics_->decode_time.observe(seconds(now - e.first_token));
  if (e.generated > 1)
    metrics_->time_per_output_token.observe(seconds(e.last_token - e.first_token) /
                                            static_cast<double>(e.generated - 1));
}

// Within the engine's step().
void EngineService::on_step(const StepRecord& step) {
  metrics_->observe(step);
  if (!options_.trace) return;
  int64_t queued = 0;
  {
    const std::lock_guard lock(mutex_);
    queued = std::ssize(waiting_);
  }
  options_.trace->add(step, queued);
}

void EngineService::measure_step() {
  const StepStats s = engine_->stats();
  const std::lock_guard lock(mutex_);
  count_prefixes(s);
  seen_ = s;
  publish_load();
}

void EngineService::count_prefixes(const StepStats& s) {
  const auto add = [](Counter& to, int64_t now, int64_t before) {
    if (now > before) to.add(static_cast<double>(now - before));
  };
  add(metrics_->preemptions, s.preemptions, seen_.preemptions);
  add(metrics_->prefix_queries, s.prefix_queries, seen_.prefix_queries);
  add(metrics_->prefix_hits, s.prefix_hits, seen_.prefix_hits);
  for (size_t i = 0; i < s.prefix_misses.size(); ++i)
    if (Counter* const miss = metrics_->prefix_misses[i]; miss != nullptr)
      add(*miss, s.prefix_misses[i], seen_.prefix_misses[i]);
  add(metrics_->swapped_out, s.blocks_swapped_out, seen_.blocks_swapped_out);
  add(metrics_->swapped_in, s.blocks_swapped_in, seen_.blocks_swapped_in);
  metrics_->cached_blocks.set(static_cast<double>(s.blocks_cached));
  metrics_->saved_states.set(static_cast<double>(s.states_saved));
  add(metrics_->host_stored_bytes, s.host_bytes_stored, seen_.host_bytes_stored);
  add(metrics_->host_loaded_bytes, s.host_bytes_loaded, seen_.host_bytes_loaded);
  add(metrics_->host_hits, s.host_tokens_loaded, seen_.host_tokens_loaded);
  metrics_->host_states.set(static_cast<double>(s.host_states));
  if (s.host_pages_total > 0)
    metrics_->host_usage.set(static_cast<double>(s.host_pages_used) /
                             static_cast<double>(s.host_pages_total));
}

void EngineService::publish_load() {
  metrics_->running.set(static_cast<double>(running_.size()));
  metrics_->waiting.set(static_cast<double>(waiting_.size()));
  // With the last answer all blocks return, though perhaps with the next step only.
  const bool idle = running_.empty() || seen_.blocks_total == 0;
  metrics_->kv_usage.set(
      idle ? 0.0 : static_cast<double>(seen_.blocks_used) / static_cast<double>(seen_.blocks_total));
}

}  // namespace quire::server
