#include "lab/batch_workload.h"

#include <algorithm>
#include <chrono>
#include <mutex>

namespace quire::cli {
namespace {

using Clock = std::chrono::steady_clock;

double seconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// Notes what the listeners of one run hear; they are called on the engine's delivering thread.
class Watch {
 public:
  explicit Watch(const BatchShape& shape) : shape_(shape), tokens_(static_cast<size_t>(shape.sequences)) {}

  void hear(size_t sequence, const TokenEvent& e) {
    const std::lock_guard lock(mutex_);
    last_ = Clock::now();
    if (e.error() != nullptr && !error_) error_ = *e.error();
    if (e.token() >= 0 && tokens_[sequence]++ == 0) {
      first_tokens_ += seconds(start_, last_);
      if (++begun_ == shape_.sequences) {
        all_begun_ = last_;
        at_all_begun_ = tokens_;
      }
    }
    if (e.finish() == FinishReason::kNone || ended_++ > 0) return;
    first_end_ = last_;
    if (begun_ < shape_.sequences) return;
    for (size_t i = 0; i < tokens_.size(); ++i) decoded_ += tokens_[i] - at_all_begun_[i];
    steps_ = tokens_[sequence] - at_all_begun_[sequence];
  }
  bool all_begun() {
    const std::lock_guard lock(mutex_);
    return begun_ == shape_.sequences;
  }
  bool any_ended() {
    const std::lock_guard lock(mutex_);
    return ended_ > 0;
  }

  // Once the engine is idle.
  Result<BatchRun> result() {
    const std::lock_guard lock(mutex_);
    if (error_) return *error_;
    if (steps_ < 1)
      return request_error(
          "of {} sequences one ended before the last had its first token: generate more than {} tokens, or "
          "raise --batch-tokens",
          shape_.sequences, shape_.generate);
    return BatchRun{.prefill_seconds = seconds(start_, all_begun_),
                    .first_token_seconds = first_tokens_ / shape_.sequences,
                    .decode_seconds = seconds(all_begun_, first_end_),
                    .decode_steps = steps_,
                    .decode_tokens = decoded_,
                    .total_seconds = seconds(start_, last_)};
  }

 private:
  const BatchShape shape_;
  const Clock::time_point start_ = Clock::now();
  std::mutex mutex_;
  std::vector<int64_t> tokens_, at_all_begun_;
  int32_t begun_ = 0, ended_ = 0;
  int64_t steps_ = 0, decoded_ = 0;
  double first_tokens_ = 0;
  Clock::time_point all_begun_, first_end_, last_ = start_;
  std::optional<Error> error_;
};

}  // namespace

EngineOptions options_for(std::span<const BatchShape> shapes, EngineOptions options, int32_t batch_tokens) {
  options.max_sequences = 1;
  options.context = options.kv_tokens = 0;
  for (const BatchShape& s : shapes) {
    const int64_t blocks = (s.context() + kBlockTokens - 1) / kBlockTokens;
    options.max_sequences = std::max(options.max_sequences, s.sequences);
    options.context = std::max(options.context, s.context());
    // A block more for each: who is admitted has one to spare beside all that run.
    options.kv_tokens = std::max(options.kv_tokens, s.sequences * (blocks + 1) * kBlockTokens);
  }
  constexpr int32_t kGpuBatchTokens = 8192;  // experts reach most of their speed there (docs/benchmarks.md)
  const int32_t suits = options.device == Device::kCuda ? kGpuBatchTokens : kDefaultBatchTokens;
  options.max_batch_tokens = batch_tokens > 0 ? batch_tokens : std::max(suits, options.max_sequences);
  return options;
}

Request BatchWorkload::request(const BatchShape& shape) {
  Request r;
  std::uniform_int_distribution<TokenId> any(0, static_cast<TokenId>(engine_.model().model->config().vocab - 1));
  for (int64_t i = 0; i < shape.prompt; ++i) r.prompt.edit().push_back(any(random_));
  r.max_tokens = shape.generate + 1;
  r.ignore_eos = true;
  return r;
}

Result<BatchRun> BatchWorkload::run(const BatchShape& shape, const Phases& phases) {
  std::vector<Request> requests;
  for (int32_t i = 0; i < shape.sequences; ++i) requests.push_back(request(shape));
  Watch watch(shape);
  Status submitted;
  // All of them are there before the first step, as if they had come in one moment.
  for (size_t i = 0; i < requests.size() && submitted.ok(); ++i) {
    const auto id = engine_.submit(std::move(requests[i]), [&, i](const TokenEvent& e) { watch.hear(i, e); });
    if (!id.ok()) submitted = id.error();
  }
  bool begun = false, ended = false;
  StepStats before, after;
  while (engine_.busy()) {  // also when one was refused: the others hear into `watch`
    engine_.step();
    if (!begun && watch.all_begun()) {
      begun = true;
      before = engine_.stats();
      phases.all_begun();
    }
    if (begun && !ended && watch.any_ended()) {
      ended = true;
      after = engine_.stats();
      phases.first_ended();
    }
  }
  while (engine_.step()) {  // a step that was ahead of the last end
  }
  engine_.drain_events();
  QUIRE_CHECKED(submitted);
  QUIRE_TRY(BatchRun run, watch.result());
  const auto steps = static_cast<double>(after.steps - before.steps);
  if (steps > 0) run.step_host_seconds = (after.host_seconds - before.host_seconds) / steps;
  if (after.drafts == before.drafts) {
    run.decode_tokens = shape.sequences * run.decode_steps;  // a token of everybody in every step
  } else if (steps > 0) {
    run.tokens_per_step = static_cast<double>(run.decode_tokens) / (steps * shape.sequences);
  }
  return run;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

}  // namespace quire::cli
