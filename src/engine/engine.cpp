#include "engine/engine.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/log.h"
#include "core/memory.h"
#include "engine/activations.h"
#include "engine/cuda_device.h"
#include "engine/dry_step.h"
#include "ops/registry.h"

namespace quire {
namespace {

// Raised when a change of ours changes bits, on whatever machine: part of every fingerprint.
// tests/eval/numerics_test.cpp notices such a change.
constexpr int kNumericsVersion = 4;

// "65536", "1.31M".
std::string short_count(int64_t n) {
  return n < 1000000 ? fmt::format("{}", n) : fmt::format("{:.2f}M", static_cast<double>(n) * 1e-6);
}

// What prompts' tokens are on all devices of the engine.
Result<PromptActivations> activations_of(const LoadedModel& model, const EngineOptions& o) {
  PromptActivations chosen = o.activations;
  for (int i = 0; i < o.pipeline_parallel && chosen != PromptActivations::kBf16; ++i) {
    QUIRE_TRY(chosen, choose_activations(model.file, o.activations, o.device, o.gpu_of_stage(i)));
  }
  return chosen;
}

// Whether the model's block for multi-token prediction can draft on the engine's device.
Status check_mtp(const LoadedModel& model, const EngineOptions& options) {
  QUIRE_TRY(const MtpBlock* const block, model.mtp());
  if (options.device != Device::kCuda) return {};
  const Result<Machine> machine = open_gpu(options.gpu_of_stage(options.pipeline_parallel - 1));
  if (!machine.ok()) return {};  // which the model is told of as well
  return check_gpu_kernels(mtp_decoder(model.model->decoder(), block->weights, kDraftedTokens), *machine,
                           options.kv_cache);
}

// Whether the model's block for multi-token prediction drafts. Speculation that has nothing to draft with is none.
bool find_drafters(const LoadedModel& model, EngineOptions& options) {
  SpeculativeOptions& o = options.speculative;
  bool mtp = false;
  if (o.wants_mtp() && (o.mode == Speculative::kMtp || model.has_mtp())) {
    const Status usable = check_mtp(model, options);
    mtp = usable.ok();
    if (!usable.ok())
      log_warning(fmt::format("nothing is drafted by multi-token prediction: {}", usable.error().message));
  }
  if (!mtp && !o.looks_up()) o.mode = Speculative::kOff;
  return mtp;
}

// What memory does not allow.
void say_what_is_less(const EngineOptions& asked, const EnginePlan& chosen, const ModelConfig& model) {
  if (asked.context == 0 && chosen.context < model.context_length)
    log_warning(
        fmt::format("the model was trained for {} tokens, but memory allows {}: that is the context; --context "
                    "takes another",
                    model.context_length, chosen.context));
  if (chosen.max_sequences < asked.max_sequences)
    log_warning(fmt::format("memory allows {} sequences at once, not {}: others wait", chosen.max_sequences,
                            asked.max_sequences));
  if (asked.prefix_cache && chosen.prefix_host_bytes < asked.prefix_host_bytes)
    log_warning(fmt::format("memory allows {:.2f} GiB for what leaves the prefix cache, not {:.2f}",
                            static_cast<double>(chosen.prefix_host_bytes) / (1 << 30),
                            static_cast<double>(asked.prefix_host_bytes) / (1 << 30)));
  if (chosen.max_batch_tokens < asked.max_batch_tokens)
    log_warning(
        fmt::format("memory allows steps of {} tokens, not {}", chosen.max_batch_tokens, asked.max_batch_tokens));
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

Result<std::unique_ptr<Engine>> Engine::create(std::shared_ptr<const LoadedModel> model, EngineOptions options,
                                               const BackendFactory& backend) {
  Result<std::unique_ptr<Engine>> engine = create_on_device(model, options, backend);
  if (engine.ok() || !options.cpu_instead(engine.error().fault)) return engine;
  log_warning(fmt::format("the CPU computes: {}", engine.error().message));
  options.device = Device::kCpu;
  options.pipeline_parallel = 1;
  options.tensor_split.clear();
  return create_on_device(std::move(model), std::move(options), backend);
}

Result<std::unique_ptr<Engine>> Engine::create_on_device(std::shared_ptr<const LoadedModel> model,
                                                         EngineOptions options, const BackendFactory& backend) {
  const auto start = std::chrono::steady_clock::now();
  QUIRE_CHECKED(check_forced(options.kernels, {.device = options.device}));
  const ModelConfig& config = model->model->config();
  const EngineOptions asked = options;
  QUIRE_CHECKED(check_options(options, config));
  QUIRE_TRY(options.activations, activations_of(*model, options));
  const bool mtp = find_drafters(*model, options);
  QUIRE_TRY(const MemoryOfEngine has, memory_for(model, options, mtp));
  QUIRE_TRY(EnginePlan plan, has.stages.empty() ? resolve(options, config, has.memory, mtp)
                                                : resolve_stages(options, config, has.memory, has.stages, mtp));
  say_what_is_less(asked, plan, config);
  QUIRE_TRY(std::unique_ptr<Backend> made, backend(model, plan));
  std::unique_ptr<Engine> engine(new Engine(std::move(model), std::move(plan), std::move(made)));
  engine->create_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return engine;
}

Engine::Engine(std::shared_ptr<const LoadedModel> model, EnginePlan plan, std::unique_ptr<Backend> backend)
    : model_(std::move(model)),
      plan_(std::move(plan)),
      inbox_(plan_.max_waiting, plan_.max_sequences),
      delivery_([this](RequestId id, bool by_text) { inbox_.end(id, by_text); }),
      backend_(std::move(backend)),
      cache_(*backend_, plan_, model_->model->config()),
      writer_(*backend_, plan_, model_->model->config()),
      in_flight_(plan_.steps_in_flight(), plan_.step_buffers(), backend_->layout().capacity().segments),
      waiting_(plan_),
      running_(backend_->layout().capacity().batch_slots),
      speculator_(plan_, *model_),
      encoder_(model_->vision ? model_->vision->tower.get() : nullptr, plan_, model_->model->config().layers),
      masks_(*backend_, [this] { inbox_.wake(); }),
      committer_(*model_, delivery_, speculator_, masks_, counters_, waiting_) {
  fingerprint_ = fmt::format("quire-{}.{}/{}/{}/{:016x}", QUIRE_VERSION, kNumericsVersion, backend_->numerics(),
                             plan_.for_latency() ? "latency" : "throughput", model_->identity());
  const CacheShape cache = plan_.cache_shape(model_->model->config());
  if (plan_.encoder.any()) fingerprint_ += fmt::format("/vision-{:016x}", model_->vision->identity);
  if (cache.kv_dtype != cache.activation_dtype)
    fingerprint_ += fmt::format("/kv-{}", cache.kv_dtype == DType::kF8E4M3 ? "fp8" : dtype_name(cache.kv_dtype));
  if (token_rounding(plan_.activations) != TokenRounding::kNone)
    fingerprint_ += fmt::format("/activations-{}", activations_name(plan_.activations));
  snapshot_.running.reserve(static_cast<size_t>(plan_.max_sequences));
  snapshot_.waiting.reserve(WaitingRequests::kMostLookedAt);
  snapshot_.clients.reserve(WaitingRequests::kMostLookedAt);
  step_plan_.reserve(WaitingRequests::kMostLookedAt);
}

Engine::~Engine() {
  step_observer_ = nullptr;  // what it knows may have ended already
  take_incoming();
  while (!in_flight_.empty()) retire();
  const TokenEvent::Ended cancelled{.finish = FinishReason::kCancelled};
  for (const auto& s : running_.all())
    if (!s->finished()) committer_.finish(*s, cancelled);
  release_finished();
  while (!waiting_.empty()) finish_waiting(waiting_.first(), cancelled);
  delivery_.drain();
}

void Engine::take_incoming() {
  Inbox::Arrivals& arrived = inbox_.take();
  for (auto& s : arrived.sequences) waiting_.add(std::move(s), planned_steps_);
  if (!arrived.ended_by_text.empty())
    for (const auto& s : running_.all())
      if (!s->finished() && contains(arrived.ended_by_text, s->id)) committer_.end(*s);
  carry_out_cancels(arrived);
  for (const auto& s : running_.all()) committer_.commit_held(*s);
  release_finished();
  publish_caches();
}

void Engine::carry_out_cancels(Inbox::Arrivals& arrived) {
  const TokenEvent::Ended cancelled{.finish = FinishReason::kCancelled};
  if (arrived.cancelled_all)
    while (!waiting_.empty()) finish_waiting(waiting_.first(), cancelled);
  std::vector<RequestId>& ids = arrived.cancelled;
  if (ids.empty() && !arrived.cancelled_all) return;
  const auto before = [](RequestId a, RequestId b) { return a.v < b.v; };
  std::sort(ids.begin(), ids.end(), before);
  for (const auto& s : running_.all()) {
    const bool asked = std::binary_search(ids.begin(), ids.end(), s->id, before);
    if (!s->finished() && (asked || arrived.cancelled_all)) committer_.finish(*s, cancelled);
  }
  for (const RequestId id : ids)
    if (waiting_.contains(id)) finish_waiting(id, cancelled);
}

bool Engine::step() {
  const auto begin = Clock::now();
  const double waited = waited_seconds_;
  take_incoming();
  if (const std::optional<Error> error = lost()) fail_all(*error);  // what was submitted just before
  const bool was_idle = in_flight_.empty();
  const bool drafts = speculator_.wants_drafts(running_);
  const bool planned = !in_flight_.full() && !waits_for_newest(drafts) && schedule(drafts);
  if (planned) submit_step(begin);
  if (!in_flight_.empty()) {
    // Ahead by as many steps as may be in flight, or as there are.
    if (in_flight_.full() || !planned) retire();
    const double all = std::chrono::duration<double>(Clock::now() - begin).count();
    counters_.count_host_seconds(all - (waited_seconds_ - waited));
    return true;
  }
  speculator_.idle();
  if (!was_idle) return true;
  // Nothing to compute: listeners may have to hear of ends, or be about to send more.
  inbox_.wait(std::chrono::milliseconds(2));
  return false;
}

// Whether the newest step in flight has to be retired, or its masks to be written, before another one is planned.
bool Engine::waits_for_newest(bool drafts) {
  if (in_flight_.empty()) return false;
  const StepInFlight& newest = in_flight_.newest();
  return newest.speculates || drafts || newest.masks == StepInFlight::Masks::kWait;
}

void Engine::publish_caches() {
  counters_.note_caches(cache_.counts(), cache_.uses(), cache_.host_use());
  if (cache_.prefix_cache() != nullptr) cache_.prefix_cache()->send_events();
}

void Engine::fail(Error error) {
  if (!backend_->lost()) {
    // The device is sound: a step was wrong, and others need not be. Whoever waits has seen nothing of it.
    const Error ours = std::move(error).context("internal error");
    log_error(ours.message);
    fail_running(ours);
    return release_finished();
  }
  const Error lost = std::move(error).context("the device is lost");
  inbox_.lose(lost);
  fail_all(lost);
}

// One that has no batch slot.
void Engine::finish_waiting(RequestId id, const TokenEvent::Ended& end) {
  inbox_.leave_queue(1);
  const std::unique_ptr<Sequence> s = waiting_.remove(id);
  delivery_.push(s->stream, end);
}

void Engine::release_finished() {
  running_.remove_finished([&](Sequence& s) { cache_.release(s); });
}

void Engine::fail_running(const Error& error) {
  const TokenEvent::Ended failed{.finish = FinishReason::kError, .error = error};
  for (const auto& s : running_.all())
    if (!s->finished()) committer_.finish(*s, failed);
  encoder_.forget();
  // Those in flight began with what the failed step left: nobody wants their results.
  while (!in_flight_.empty()) {
    write_masks_that_wait();
    (void)wait_for(in_flight_.retire());
  }
}

void Engine::fail_all(const Error& error) {
  fail_running(error);
  const TokenEvent::Ended failed{.finish = FinishReason::kError, .error = error};
  while (!waiting_.empty()) finish_waiting(waiting_.first(), failed);
  release_finished();
}

PrefixFileOwner Engine::prefix_owner() const {
  return {.fingerprint = fingerprint_, .pools = cache_.pools(), .vocab = model_->model->config().vocab};
}

Result<PrefixFileContent> Engine::save_prefixes(const std::string& path, int64_t max_bytes) {
  while (!in_flight_.empty()) retire();
  release_finished();
  if (const std::optional<Error> error = lost()) return *error;
  if (cache_.prefix_cache() == nullptr) return PrefixFileContent{};
  return write_prefix_file(path, prefix_owner(), salt_hash_, *cache_.prefix_cache(), *backend_, max_bytes);
}

Result<PrefixFileContent> Engine::load_prefixes(const std::string& path) {
  if (cache_.prefix_cache() == nullptr) return PrefixFileContent{};
  Result<PrefixFileContent> content =
      read_prefix_file(path, prefix_owner(), salt_hash_, prefix_hash_, *cache_.prefix_cache(), *backend_);
  publish_caches();
  return content;
}

void Engine::tell_prefixes(std::shared_ptr<KvEventSink> sink, const std::optional<std::vector<std::string>>& open) {
  if (cache_.prefix_cache() == nullptr) return log_warning("there is no prefix cache that others could be told of");
  std::optional<std::vector<Hash128>> salts;
  if (open) salts.emplace();
  for (const std::string& salt : open.value_or(std::vector<std::string>{}))
    salts->push_back(salt_hash_(std::as_bytes(std::span(salt))));
  cache_.prefix_cache()->tell(std::move(sink), std::move(salts));
  publish_caches();
}

StepStats Engine::stats() const {
  StepStats s = counters_.read();
  s.waiting = inbox_.queued();
  return s;
}

std::string Engine::capacity() const {
  const CachePools& pools = backend_->pools();
  const PoolCounts& units = backend_->units();
  const auto gib = [&](size_t i) { return static_cast<double>(units[i] * pools[i].bytes) / (int64_t{1} << 30); };
  const auto tokens = [&](size_t i) { return short_count(int64_t{units[i]} * kBlockTokens); };
  std::string s =
      fmt::format("cache: {} tokens in {}{:.{}f} GiB; {}", tokens(kKvPool),
                  plan_.device == Device::kCuda ? "" : "up to ", gib(kKvPool), gib(kKvPool) < 10 ? 2 : 0, plan_.text());
  for (size_t i = kKvPool + 1; i < pools.size(); ++i) {
    if (pools[i].unit == CachePoolSpec::Unit::kBlock)
      s += fmt::format(", {}s of {} tokens in {:.2f} GiB", pools[i].name, tokens(i), gib(i));
    else if (plan_.prefix_cache)
      s += fmt::format(", {} prefix {}s", units[i] - plan_.max_sequences, pools[i].name);
  }
  return s;
}

MemoryUse Engine::memory() const {
  const BackendMemory m = backend_->memory();
  const int64_t made = model_->file.made_bytes();
  int64_t tower = 0, tower_made = 0;
  if (plan_.encoder.any()) {
    tower_made = model_->vision->file.made_bytes();
    tower = static_cast<int64_t>(model_->vision->file.mapped_bytes()) - tower_made;
    tower_made += model_->vision->tower->owned_bytes();
  }
  return {.mapped = static_cast<int64_t>(model_->file.mapped_bytes()) - made + tower,
          .converted = model_->model->owned_bytes() + made + tower_made,
          .repacked = m.repacked,
          .kv_and_state = m.kv_and_state,
          .workspace = m.workspace};
}

}  // namespace quire
