#include "engine/engine.h"

#include <algorithm>
#include <chrono>

#include "ops/registry.h"

namespace quire {
namespace {

// Raised when a change of ours changes bits: part of every fingerprint.
constexpr int kNumericsVersion = 1;

bool contains(std::span<const RequestId> ids, RequestId id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

std::string_view finish_reason_name(FinishReason r) {
  switch (r) {
    case FinishReason::kNone:
      return "none";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kError:
      return "error";
  }
  return "error";
}

Result<std::unique_ptr<Engine>> Engine::create(std::shared_ptr<const LoadedModel> model,
                                               EngineOptions options, const BackendFactory& backend) {
  const auto start = std::chrono::steady_clock::now();
  QUIRE_CHECKED(check_forced(options.kernels, cpu_features()));
  QUIRE_TRY(options, resolve(std::move(options), model->model->config()));
  QUIRE_TRY(std::unique_ptr<Backend> made, backend(model, options));
  std::unique_ptr<Engine> engine(new Engine(std::move(model), std::move(options), std::move(made)));
  engine->create_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return engine;
}

Engine::Engine(std::shared_ptr<const LoadedModel> model, EngineOptions options,
               std::unique_ptr<Backend> backend)
    : model_(std::move(model)),
      options_(std::move(options)),
      delivery_([this](RequestId id, bool by_text) { on_end(id, by_text); }),
      backend_(std::move(backend)),
      runner_(*backend_, options_, model_->model->config()) {
  fingerprint_ =
      fmt::format("quire-{}.{}/{}/{}/{:016x}", QUIRE_VERSION, kNumericsVersion, backend_->numerics(),
                  options_.for_latency() ? "latency" : "throughput", model_->identity());
  const auto sequences = static_cast<size_t>(options_.max_sequences);
  snapshot_.running.reserve(sequences);
  snapshot_.waiting.reserve(sequences);
  plan_.admit.reserve(sequences);
  plan_.work.reserve(2 * sequences);
}

Engine::~Engine() {
  take_incoming();
  while (!runner_.idle()) retire();
  for (const auto& s : runner_.running())
    if (!s->finished) finish(*s, {.finish = FinishReason::kCancelled});
  runner_.release_finished();
  for (auto& s : waiting_) finish(*s, {.finish = FinishReason::kCancelled});
  delivery_.drain();
}

Status Engine::validate(const Request& r) const {
  const int64_t vocab = model_->model->config().vocab;
  const auto prompt = static_cast<int64_t>(r.prompt.size());
  if (prompt == 0) return request_error("the prompt is empty: there is nothing to continue");
  for (size_t i = 0; i < r.prompt.size(); ++i)
    if (r.prompt[i] < 0 || r.prompt[i] >= vocab)
      return request_error("prompt token {} is {}: the vocabulary has {} tokens", i, r.prompt[i], vocab);
  if (r.max_tokens < 1) return request_error("max_tokens is {}: must be at least 1", r.max_tokens);
  if (prompt >= options_.context)
    return request_error("the prompt has {} tokens, but the context holds {} including the answer", prompt,
                         options_.context);
  for (TokenId t : r.stop_tokens)
    if (t < 0 || t >= vocab) return request_error("stop token {}: the vocabulary has {} tokens", t, vocab);
  if (!r.stop.empty() && !model_->tokenizer)
    return request_error("stop texts need a tokenizer, and this model file has none");
  QUIRE_CHECKED(r.sampling.validate(vocab));
  const StepCapacity& c = backend_->layout().capacity();
  return SampleLimits{.vocab = vocab,
                      .places = c.places,
                      .histories = c.places,
                      .max_top = c.max_top,
                      .max_bias = options_.max_logit_bias}
      .check(r.sampling);
}

Result<RequestId> Engine::submit(Request request, Listener listener) {
  QUIRE_CHECKED(validate(request));
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  request.max_tokens = std::min(request.max_tokens, options_.context - prompt);
  QUIRE_TRY(StopMatcher stop, StopMatcher::create(request.stop));
  auto s = std::make_unique<Sequence>();
  s->tokens.reserve(static_cast<size_t>(prompt + request.max_tokens));
  s->tokens = request.prompt;
  s->max_blocks = static_cast<int32_t>((prompt + request.max_tokens + kBlockTokens - 1) / kBlockTokens);
  s->table.reserve_memory(s->max_blocks);
  RequestId id;
  {
    const std::lock_guard lock(inbox_mutex_);
    if (queued_ >= options_.max_waiting)
      return capacity_error("{} requests wait already, which is as many as may; try again later", queued_);
    ++queued_;
    s->id = id = RequestId{next_id_};
    next_id_ = next_id_ == INT32_MAX ? 0 : next_id_ + 1;
    s->stream = std::make_shared<Delivery::Stream>(
        id, request, std::move(listener), model_->tokenizer ? &*model_->tokenizer : nullptr, std::move(stop));
    s->request = std::move(request);
    unfinished_.fetch_add(1, std::memory_order_release);
    inbox_.push_back(std::move(s));
  }
  arrived_.notify_all();
  return id;
}

void Engine::cancel(RequestId id) {
  const std::lock_guard lock(inbox_mutex_);
  cancels_.push_back(id);
  arrived_.notify_all();
}

// On the delivering thread.
void Engine::on_end(RequestId id, bool by_text) {
  const std::lock_guard lock(inbox_mutex_);
  if (by_text) ended_by_text_.push_back(id);
  unfinished_.fetch_sub(1, std::memory_order_release);
  arrived_.notify_all();
}

void Engine::take_incoming() {
  arriving_.clear();
  cancelling_.clear();
  texts_.clear();
  {
    const std::lock_guard lock(inbox_mutex_);
    arriving_.swap(inbox_);
    cancelling_.swap(cancels_);
    texts_.swap(ended_by_text_);
  }
  for (auto& s : arriving_) waiting_.push_back(std::move(s));
  if (!texts_.empty())
    for (const auto& s : runner_.running())
      if (!s->finished && contains(texts_, s->id)) runner_.finish(*s);
  if (!cancelling_.empty()) {
    for (const auto& s : runner_.running())
      if (!s->finished && contains(cancelling_, s->id)) finish(*s, {.finish = FinishReason::kCancelled});
    const auto cancelled = std::erase_if(waiting_, [&](const std::unique_ptr<Sequence>& s) {
      if (!contains(cancelling_, s->id)) return false;
      finish(*s, {.finish = FinishReason::kCancelled});
      return true;
    });
    const std::lock_guard lock(inbox_mutex_);
    queued_ -= static_cast<int64_t>(cancelled);
  }
  runner_.release_finished();
}

void Engine::take_snapshot() {
  snapshot_.running.clear();
  snapshot_.waiting.clear();
  for (const auto& s : runner_.running()) {
    ScheduledSequence& of = snapshot_.running.emplace_back();
    of = {.id = SeqId{s->place},
          .prompt = s->prompt_tokens(),
          .total = s->to_compute(),
          .computed = s->planned,
          .max_blocks = s->max_blocks};
    // Finished: holds its memory until the last step that mentions it has ended.
    if (s->finished) of.prompt = of.total = of.computed;
  }
  // Waiting ones get numbers beyond those of all places.
  const int32_t most = std::min(runner_.free_places(), static_cast<int32_t>(waiting_.size()));
  for (int32_t i = 0; i < most; ++i) {
    const Sequence& s = *waiting_[static_cast<size_t>(i)];
    snapshot_.waiting.push_back({.id = SeqId{options_.max_sequences + i},
                                 .prompt = s.prompt_tokens(),
                                 .total = s.prompt_tokens(),
                                 .computed = 0,
                                 .max_blocks = s.max_blocks});
  }
  snapshot_.total_blocks = runner_.blocks().total();
  snapshot_.free_slots = runner_.slots().free_count();
  snapshot_.needs_slots = model_->model->config().hybrid;
}

void Engine::plan_and_submit() {
  take_snapshot();
  plan_step(snapshot_, {options_.max_batch_tokens, options_.max_sequences}, plan_);
  if (plan_.work.empty()) return;
  if (!plan_.admit.empty()) {
    for (size_t i = 0; i < plan_.admit.size(); ++i) {
      const SeqId number = plan_.admit[i];
      QUIRE_CHECK(number.v == options_.max_sequences + static_cast<int32_t>(i),
                  "the plan admits out of order");
      Sequence& s = *waiting_.front();
      runner_.admit(std::move(waiting_.front()));
      waiting_.pop_front();
      for (Work& w : plan_.work)
        if (w.seq == number) w.seq = SeqId{s.place};
    }
    const std::lock_guard lock(inbox_mutex_);
    queued_ -= static_cast<int64_t>(plan_.admit.size());
  }
  runner_.submit(plan_);
}

bool Engine::step() {
  const auto begin = std::chrono::steady_clock::now();
  const double waited = runner_.waited_seconds();
  take_incoming();
  if (lost_) fail_all(*lost_);
  const bool was_idle = runner_.idle();
  if (!runner_.full()) plan_and_submit();
  if (!runner_.idle()) {
    // Ahead by `depth` steps, or by as many as there are.
    if (runner_.full() || plan_.work.empty()) retire();
    const double all = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    const std::lock_guard lock(inbox_mutex_);
    stats_.host_seconds += all - (runner_.waited_seconds() - waited);
    return true;
  }
  if (!was_idle) return true;
  // Nothing to compute: listeners may have to hear of ends, or be about to send more.
  std::unique_lock lock(inbox_mutex_);
  if (unfinished_.load(std::memory_order_acquire) > 0)
    arrived_.wait_for(lock, std::chrono::milliseconds(2), [&] {
      return unfinished_.load(std::memory_order_acquire) == 0 || !inbox_.empty() || !cancels_.empty() ||
             !ended_by_text_.empty();
    });
  return false;
}

void Engine::retire() {
  const Result<const Runner::Retired*> done = runner_.retire();
  if (!done.ok()) {
    lost_ = done.error();
    return fail_all(*lost_);
  }
  const Runner::Retired& r = **done;
  const auto prompt = static_cast<double>(r.prompt_rows),
             all = static_cast<double>(r.prompt_rows + r.decode_rows);
  {
    const std::lock_guard lock(inbox_mutex_);
    ++stats_.steps;
    stats_.prompt_tokens += r.prompt_rows;
    stats_.decode_tokens += r.decode_rows;
    stats_.prompt_seconds += r.seconds * prompt / all;
    stats_.decode_seconds += r.seconds * (all - prompt) / all;
  }
  for (const Runner::Row& row : r.rows) commit(*row.sequence, row.sampled);
  runner_.release_finished();
}

void Engine::commit(Sequence& s, Sampled sampled) {
  if (sampled.token < 0) {
    TokenEvent e{.finish = FinishReason::kError};
    e.error =
        Error{Fault::kModelFile, "the model's logits are not numbers: its file is damaged or not supported"};
    return finish(s, std::move(e));
  }
  s.tokens.push_back(sampled.token);
  TokenEvent e{.token = sampled.token, .logprob = sampled.logprob, .top = std::move(sampled.top)};
  const std::vector<TokenId>& stops = s.request.stop_tokens;
  const bool ends = std::find(stops.begin(), stops.end(), sampled.token) != stops.end() ||
                    (!s.request.ignore_eos && model_->tokenizer && model_->tokenizer->is_eog(sampled.token));
  if (ends) {
    e.finish = FinishReason::kStop;
  } else if (s.outputs() >= s.request.max_tokens) {
    e.finish = FinishReason::kLength;
  }
  if (e.finish != FinishReason::kNone) return finish(s, std::move(e));
  delivery_.push(s.stream, std::move(e));
}

void Engine::finish(Sequence& s, TokenEvent event) {
  runner_.finish(s);
  delivery_.push(s.stream, std::move(event));
}

void Engine::fail_all(const Error& error) {
  const auto fail = [&](Sequence& s) {
    if (s.finished) return;
    TokenEvent e{.finish = FinishReason::kError};
    e.error = error;
    finish(s, std::move(e));
  };
  while (!runner_.idle()) {
    const auto ignored = runner_.retire();  // fails as well; what it mentions returns
    (void)ignored;
  }
  for (const auto& s : runner_.running()) fail(*s);
  for (auto& s : waiting_) fail(*s);
  {
    const std::lock_guard lock(inbox_mutex_);
    queued_ -= static_cast<int64_t>(waiting_.size());
  }
  waiting_.clear();
  runner_.release_finished();
}

StepStats Engine::stats() const {
  const std::lock_guard lock(inbox_mutex_);
  return stats_;
}

MemoryUse Engine::memory() const {
  const BackendMemory m = backend_->memory();
  return {.mapped = static_cast<int64_t>(model_->file.mapped_bytes()),
          .converted = model_->model->owned_bytes(),
          .repacked = m.repacked,
          .kv_and_state = m.kv_and_state,
          .workspace = m.workspace};
}

}  // namespace quire
