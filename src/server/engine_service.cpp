#include "server/engine_service.h"

#include <algorithm>
#include <cmath>

#include "core/log.h"

namespace quire::server {
namespace {

double seconds(std::chrono::steady_clock::duration d) {
  return std::chrono::duration<double>(d).count();
}

}  // namespace

EngineService::EngineService(std::unique_ptr<Engine> engine, Options options, std::shared_ptr<EngineMetrics> metrics)
    : engine_(std::move(engine)),
      options_(std::move(options)),
      metrics_(std::move(metrics)),
      max_running_(static_cast<size_t>(engine_->plan().max_sequences)) {
  engine_->observe_steps([this](const StepRecord& step) { on_step(step); });
  thread_ = std::thread([this] { run(); });
}

EngineService::~EngineService() {
  stop();
}

void EngineService::stop() {
  {
    std::unique_lock lock(mutex_);
    if (std::exchange(stop_, true)) return;
    wake_.notify_all();
    wake_.wait(lock, [&] { return submitting_ == 0; });
  }
  thread_.join();
  // What the engine has ends there; no listener is called from then on.
  engine_->cancel_all();
  while (engine_->busy()) engine_->step();
  measure_step();
}

ApiStatus EngineService::health() const {
  if (const std::optional<Error> lost = engine_->lost())
    return ApiError{503, lost->message + "; the server must be started again", "", "device_lost"};
  return {};
}

int EngineService::retry_after_seconds() const {
  const double rounds = static_cast<double>(engine_->stats().waiting) / static_cast<double>(max_running_);
  return static_cast<int>(std::clamp(std::ceil(mean_seconds_ * rounds), 1.0, 60.0));
}

// Room for jobs of a client, who gets a number if it has none. A client that has one shares the queue with others: what
// it has here is never more than what is left for everybody, so that nobody who comes finds the queue full of one
// client's.
ApiStatus EngineService::reserve(uint64_t& client, size_t jobs, size_t with_uncounted) {
  const std::lock_guard lock(mutex_);
  if (stop_) return ApiError{503, "the server is shutting down", "", "shutting_down"};
  const bool shares = client != 0;
  if (!shares) client = next_group_++;
  const size_t all = options_.max_queue + max_running_, most = shares ? all / 2 : all;
  if (jobs > most)
    return bad_field("n", "invalid_value", "the request asks for {} answers; this server takes at most {}{}", jobs,
                     most, shares ? " of one key" : "");
  const auto at = jobs_of_.find(client);
  const size_t its = (at == jobs_of_.end() ? 0 : at->second) + jobs;
  const bool full = jobs_ + jobs > all, too_many = shares && its + jobs_ + jobs > all;
  if (full || too_many) {
    metrics_->rejected.add();
    return ApiError{
        .status = 429,
        .message = full ? fmt::format("the queue is full: {} requests wait; try again later", engine_->stats().waiting)
                        : fmt::format("this key's part of the queue is full: {} of its answers are not done; "
                                      "try again later",
                                      its - jobs),
        .retry_after = retry_after_seconds()};
  }
  unfinished_ += with_uncounted;
  unfinished_now_ = static_cast<int64_t>(unfinished_);
  jobs_ += jobs;
  if (its > 0) jobs_of_[client] = its;
  ++submitting_;
  return {};
}

// With the mutex held.
void EngineService::give_back(uint64_t client, size_t jobs) {
  if (jobs == 0) return;
  jobs_ -= jobs;
  const auto at = jobs_of_.find(client);
  if ((at->second -= jobs) == 0) jobs_of_.erase(at);
}

ApiResult<std::vector<JobId>> EngineService::submit(std::vector<Job> jobs, EventSink sink) {
  QUIRE_CHECKED(health());
  uint64_t client = jobs.empty() ? 0 : jobs[0].request.client;
  const auto counted =
      static_cast<size_t>(std::count_if(jobs.begin(), jobs.end(), [](const Job& job) { return job.counts; }));
  QUIRE_CHECKED(reserve(client, counted, jobs.size()));
  Result<std::vector<RequestId>> ids = Error{};
  try {
    ids = engine_->submit(submissions_of(jobs, client, std::move(sink)));
  } catch (...) {  // memory ran out
    settle(false, client, counted, jobs.size());
    throw;
  }
  settle(ids.ok(), client, counted, jobs.size());
  if (!ids.ok()) return ids.error();
  std::vector<JobId> accepted;
  for (const RequestId id : *ids) accepted.push_back(id.v);
  return accepted;
}

std::vector<Engine::Submission> EngineService::submissions_of(std::vector<Job>& jobs, uint64_t client, EventSink sink) {
  const auto shared_sink = std::make_shared<const EventSink>(std::move(sink));
  std::vector<Engine::Submission> submissions;
  submissions.reserve(jobs.size());
  for (size_t i = 0; i < jobs.size(); ++i) {
    Request& request = jobs[i].request;
    request.client = client;
    if (!request.embed) metrics_->params_max_tokens.observe(static_cast<double>(request.max_tokens));
    auto entry = std::make_shared<Entry>();
    entry->index = i;
    entry->client = client;
    entry->counts = jobs[i].counts;
    entry->sink = shared_sink;
    entry->prompt_tokens = static_cast<int64_t>(request.prompt.size());
    entry->arrived = Clock::now();
    submissions.push_back({std::move(request), [this, entry](const TokenEvent& e) { on_event(entry, e); }});
  }
  metrics_->params_n.observe(static_cast<double>(jobs.size()));
  return submissions;
}

void EngineService::settle(bool taken, uint64_t client, size_t jobs, size_t with_uncounted) {
  {
    const std::lock_guard lock(mutex_);
    --submitting_;
    if (!taken) {
      give_back(client, jobs);
      unfinished_ -= with_uncounted;
    }
    publish_load();
  }
  wake_.notify_all();
}

void EngineService::cancel(std::span<const JobId> jobs) {
  for (const JobId id : jobs) engine_->cancel(RequestId{static_cast<int32_t>(id)});
}

void EngineService::run() {
  measure_step();  // what a file brought into the prefix cache
  for (bool sound = true;;) {
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stop_ || engine_->busy(); });
      if (stop_) return;
    }
    engine_->step();  // where there is nothing to compute just now, it waits a little
    measure_step();
    if (sound && engine_->lost()) {
      sound = false;
      log_error(health().error().message);
    }
  }
}

// What throws here (memory runs out) is told once more, as the request's error.
void EngineService::on_event(const EntryPtr& entry, const TokenEvent& event) {
  if (event.as<TokenEvent::Token>() != nullptr) measure_token(*entry);
  if (const auto* const end = event.as<TokenEvent::Ended>(); end != nullptr && !std::exchange(entry->ended, true)) {
    {
      const std::lock_guard lock(mutex_);
      --unfinished_;
      if (entry->counts) give_back(entry->client, 1);
      publish_load();  // events may come after the last step: gauges go back to zero here
      if (end->admitted) {
        const double took = seconds(Clock::now() - *end->admitted);
        mean_seconds_ = mean_seconds_ == 0.0 ? took : 0.9 * mean_seconds_ + 0.1 * took;
      }
    }
    measure_end(*entry, *end);
  }
  (*entry->sink)(entry->index, event);
}

void EngineService::measure_token(Entry& e) {
  const auto now = Clock::now();
  if (e.generated == 0) {
    e.first_token = now;
    metrics_->first_token.observe(seconds(now - e.arrived));
    metrics_->prompt_tokens.add(static_cast<double>(e.prompt_tokens));
  } else {
    metrics_->inter_token.observe(seconds(now - e.last_token));
  }
  e.last_token = now;
  ++e.generated;
  metrics_->generation_tokens.add();
}

void EngineService::measure_end(const Entry& e, const TokenEvent::Ended& end) {
  const auto now = Clock::now();
  const bool answered = end.finish == FinishReason::kStop || end.finish == FinishReason::kLength;
  if (e.generated == 0 && answered) metrics_->prompt_tokens.add(static_cast<double>(e.prompt_tokens));
  metrics_->finished(end.finish).add();
  metrics_->latency.observe(seconds(now - e.arrived));
  metrics_->request_prompt_tokens.observe(static_cast<double>(e.prompt_tokens));
  metrics_->request_generation_tokens.observe(static_cast<double>(e.generated));
  if (!end.admitted) return;
  const Clock::time_point started = *end.admitted;
  metrics_->queue_time.observe(seconds(started - e.arrived));
  metrics_->inference_time.observe(seconds(now - started));
  if (e.generated == 0) return;
  metrics_->prefill_time.observe(seconds(e.first_token - started));
  metrics_->decode_time.observe(seconds(now - e.first_token));
  if (e.generated > 1)
    metrics_->time_per_output_token.observe(seconds(e.last_token - e.first_token) /
                                            static_cast<double>(e.generated - 1));
}

// Within the engine's step().
void EngineService::on_step(const StepRecord& step) {
  metrics_->observe(step);
  if (options_.trace) options_.trace->add(step, options_.number);
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
  add(metrics_->drafted_sequences, s.drafted_sequences, seen_.drafted_sequences);
  add(metrics_->draft_tokens, s.drafts, seen_.drafts);
  add(metrics_->accepted_tokens, s.drafts_accepted, seen_.drafts_accepted);
  for (size_t i = 0; i < s.accepted_at.size(); ++i)
    add(*metrics_->accepted_at[i], s.accepted_at[i], seen_.accepted_at[i]);
  add(metrics_->swapped_out, s.blocks_swapped_out, seen_.blocks_swapped_out);
  add(metrics_->swapped_in, s.blocks_swapped_in, seen_.blocks_swapped_in);
  for (size_t i = 0; i < metrics_->pools.size(); ++i)
    metrics_->pools[i].cached.set(static_cast<double>(s.pools[static_cast<int>(i)].cached));
  add(metrics_->host_stored_bytes, s.host_bytes_stored, seen_.host_bytes_stored);
  add(metrics_->host_loaded_bytes, s.host_bytes_loaded, seen_.host_bytes_loaded);
  add(metrics_->host_hits, s.host_tokens_loaded, seen_.host_tokens_loaded);
  metrics_->host_states.set(static_cast<double>(s.host_states));
  if (s.host_pages_total > 0)
    metrics_->host_usage.set(static_cast<double>(s.host_pages_used) / static_cast<double>(s.host_pages_total));
}

void EngineService::publish_load() {
  unfinished_now_ = static_cast<int64_t>(unfinished_);
  const auto jobs = static_cast<double>(unfinished_);
  const double waiting = std::min(jobs, static_cast<double>(engine_->stats().waiting));
  metrics_->running.set(jobs - waiting);
  metrics_->waiting.set(waiting);
  // With the last answer all blocks return, though perhaps with the next step only.
  const auto share = [&](const PoolUse& pool) {
    return jobs == waiting || pool.total() == 0 ? 0.0 : static_cast<double>(pool.used) / pool.total();
  };
  metrics_->kv_usage.set(share(seen_.pools[kKvPool]));
  for (size_t i = 0; i < metrics_->pools.size(); ++i)
    metrics_->pools[i].usage.set(share(seen_.pools[static_cast<int>(i)]));
}

}  // namespace quire::server
