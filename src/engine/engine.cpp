#include "engine/engine.h"

#include <algorithm>
#include <chrono>

#include "core/log.h"
#include "core/memory.h"
#include "ops/registry.h"

namespace quire {
namespace {

// Raised when a change of ours changes bits: part of every fingerprint.
constexpr int kNumericsVersion = 1;

// An embedding's request is a prompt alone, to everybody who asks what it may come to generate.
void ignore_generation(Request& r) {
  r.max_tokens = 0;
  r.sampling = {};
  r.stop.clear();
  r.stop_tokens.clear();
}

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
  const ModelConfig& config = model->model->config();
  const bool by_default = options.context == 0;
  const int64_t weights = static_cast<int64_t>(model->file.mapped_bytes()), available = available_memory();
  QUIRE_TRY(options, resolve(std::move(options), config, std::max<int64_t>(available - weights, 0)));
  if (by_default && options.context < config.context_length)
    log_warning(fmt::format(
        "the model was trained for {} tokens, but memory allows {}: that is the context; --context "
        "takes another",
        config.context_length, options.context));
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
  const CacheShape cache = model_->model->cache_shape(options_.device, options_.kv_cache);
  if (cache.kv_dtype != cache.activation_dtype)
    fingerprint_ += fmt::format("/kv-{}", cache.kv_dtype == DType::kI8 ? "fp8" : dtype_name(cache.kv_dtype));
  const auto sequences = static_cast<size_t>(options_.max_sequences);
  snapshot_.running.reserve(sequences);
  snapshot_.waiting.reserve(sequences + kLookAhead);
  plan_.reserve(sequences + kLookAhead);
}

Engine::~Engine() {
  step_observer_ = nullptr;  // what it knows may have ended already
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
  if (r.embed) {
    if (prompt <= options_.context) return {};
    return request_error("the prompt has {} tokens, but the context holds {}", prompt, options_.context);
  }
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
  if (request.embed) ignore_generation(request);
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  request.max_tokens = std::min(request.max_tokens, options_.context - prompt);
  QUIRE_TRY(StopMatcher stop, StopMatcher::create(request.stop));
  auto s = std::make_unique<Sequence>();
  s->tokens.reserve(static_cast<size_t>(prompt + request.max_tokens));
  s->tokens = request.prompt;
  s->max_blocks = static_cast<int32_t>((prompt + request.max_tokens + kBlockTokens - 1) / kBlockTokens);
  s->table.reserve_memory(s->max_blocks);
  s->whole = request.embed && options_.pooling == Pooling::kMean;
  if (runner_.host_blocks().total() > 0) s->host.reserve(static_cast<size_t>(s->max_blocks));
  if (runner_.prefix_cache() != nullptr) {
    s->hashes =
        hash_prefixes(prefix_hash_, salt_hash_(std::as_bytes(std::span(request.cache_salt))), request.prompt);
    s->checkpoints = Checkpoints(prompt, options_.volatile_tail, request.cache_positions);
  }
  RequestId id;
  {
    const std::lock_guard lock(inbox_mutex_);
    if (lost_) return *lost_;
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
  for (auto& s : arriving_) {
    s->arrived = planned_steps_;
    const auto at = std::upper_bound(waiting_.begin(), waiting_.end(), s->request.priority,
                                     [](int32_t p, const auto& w) { return p < w->request.priority; });
    waiting_.insert(at, std::move(s));
  }
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
  publish_counts();
}

bool Engine::step() {
  const auto begin = Clock::now();
  const double waited = runner_.waited_seconds();
  take_incoming();
  if (const std::optional<Error> error = lost()) fail_all(*error);  // what was submitted just before
  const bool was_idle = runner_.idle();
  if (!runner_.full()) plan_and_submit(begin);
  if (!runner_.idle()) {
    // Ahead by `depth` steps, or by as many as there are.
    if (runner_.full() || plan_.empty()) retire();
    const double all = std::chrono::duration<double>(Clock::now() - begin).count();
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
  const auto begin = Clock::now();
  const double waited = runner_.waited_seconds();
  Result<const Runner::Retired*> done = runner_.retire();
  if (!done.ok()) {
    const Error error = done.take_error().context("the device is lost");
    {
      const std::lock_guard lock(inbox_mutex_);
      lost_ = error;
    }
    return fail_all(error);
  }
  const Runner::Retired& r = **done;
  StepRecord record = r.record;
  const auto prompt = static_cast<double>(record.prompt_rows),
             all = static_cast<double>(record.prompt_rows + record.decode_rows);
  {
    const std::lock_guard lock(inbox_mutex_);
    ++stats_.steps;
    stats_.prompt_tokens += record.prompt_rows;
    stats_.decode_tokens += record.decode_rows;
    if (all > 0) {  // or copies alone
      stats_.prompt_seconds += record.device_seconds * prompt / all;
      stats_.decode_seconds += record.device_seconds * (all - prompt) / all;
    }
  }
  for (const Runner::Row& row : r.rows) commit(*row.sequence, row.sampled);
  for (Sequence* const s : r.embedded) commit_embedding(*s);
  runner_.release_finished();
  publish_counts();
  if (!step_observer_) return;
  record.host_seconds +=
      std::chrono::duration<double>(Clock::now() - begin).count() - (runner_.waited_seconds() - waited);
  step_observer_(record);
}

// What other threads ask for.
void Engine::publish_counts() {
  const Runner::Counts& c = runner_.counts();
  const std::lock_guard lock(inbox_mutex_);
  stats_.prefix_queries = c.queries;
  stats_.prefix_hits = c.hits;
  stats_.prefix_misses = c.misses;
  stats_.preemptions = c.preemptions;
  stats_.blocks_swapped_out = c.swapped_out;
  stats_.blocks_swapped_in = c.swapped_in;
  stats_.blocks_used = runner_.blocks().used_count();
  stats_.blocks_cached = runner_.blocks().cached_count();
  stats_.blocks_total = runner_.blocks().total();
  stats_.states_saved = runner_.prefix_cache() != nullptr ? runner_.prefix_cache()->states_held() : 0;
  publish_host_tier();
}

void Engine::publish_host_tier() {
  const PrefixCache* const cache = runner_.prefix_cache();
  if (cache == nullptr || cache->host() == nullptr) return;
  const CacheShape shape = model_->model->cache_shape(options_.device, options_.kv_cache);
  const int64_t chunk = kChunkBlocks * *shape.block_bytes(), state = *shape.state_bytes();
  const PrefixCache::Stats s = cache->stats();
  stats_.host_pages_used = cache->host()->used_count();
  stats_.host_pages_total = cache->host()->total();
  stats_.host_states = s.host_states;
  stats_.host_bytes_stored = s.chunks_stored * chunk + s.states_stored * state;
  stats_.host_bytes_loaded = s.chunks_loaded * chunk + s.states_loaded * state;
  stats_.host_tokens_loaded = s.chunks_loaded * kChunkTokens;
}

void Engine::commit(Sequence& s, Sampled sampled) {
  if (sampled.token < 0) {
    TokenEvent e{.finish = FinishReason::kError};
    e.error =
        Error{Fault::kModelFile, "the model's logits are not numbers: its file is damaged or not supported"};
    return finish(s, std::move(e));
  }
  s.tokens.push_back(sampled.token);
  TokenEvent e{.token = sampled.token,
               .logprob = sampled.logprob,
               .top = std::move(sampled.top),
               .cached_tokens = s.cached,
               .prefix_miss = s.miss.reason,
               .diverged_at = s.miss.diverged_at};
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

void Engine::commit_embedding(Sequence& s) {
  TokenEvent e{.cached_tokens = s.cached,
               .prefix_miss = s.miss.reason,
               .diverged_at = s.miss.diverged_at,
               .finish = FinishReason::kStop};
  e.embedding = s.pooled.normalised();
  if (e.embedding.empty()) {
    e.finish = FinishReason::kError;
    e.error = Error{Fault::kModelFile,
                    "the model's hidden states are not numbers: its file is damaged or not supported"};
  }
  finish(s, std::move(e));
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

PrefixFileOwner Engine::prefix_owner() const {
  const CacheShape& shape = backend_->cache_shape();
  return {.fingerprint = fingerprint_,
          .block_bytes = shape.block_bytes().value_or(0),
          .state_bytes = shape.state_bytes().value_or(0),
          .vocab = model_->model->config().vocab};
}

Result<PrefixFileContent> Engine::save_prefixes(const std::string& path, int64_t max_bytes) {
  while (!runner_.idle()) retire();
  runner_.release_finished();
  if (const std::optional<Error> error = lost()) return *error;
  if (runner_.prefix_cache() == nullptr) return PrefixFileContent{};
  return write_prefix_file(path, prefix_owner(), salt_hash_, *runner_.prefix_cache(), *backend_, max_bytes);
}

Result<PrefixFileContent> Engine::load_prefixes(const std::string& path) {
  if (runner_.prefix_cache() == nullptr) return PrefixFileContent{};
  Result<PrefixFileContent> content =
      read_prefix_file(path, prefix_owner(), salt_hash_, prefix_hash_, *runner_.prefix_cache(), *backend_);
  publish_counts();
  return content;
}

std::optional<Error> Engine::lost() const {
  const std::lock_guard lock(inbox_mutex_);
  return lost_;
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
