#include "engine/engine.h"

#include <algorithm>
#include <chrono>

#include "engine/sequence.h"
#include "ops/copy/copy.h"

namespace quire {
namespace {

int32_t blocks_for(int64_t tokens) {
  return static_cast<int32_t>((tokens + kBlockTokens - 1) / kBlockTokens);
}

// Fills in what depends on the model, and checks the rest.
Result<EngineOptions> resolve(EngineOptions o, const ModelConfig& c) {
  if (o.threads == 0) o.threads = available_cpus();
  if (o.threads < 1 || o.threads > 1024)
    return request_error("{} threads: must be between 1 and 1024", o.threads);
  if (o.context == 0) o.context = c.context_length;
  if (o.context < 1 || o.context > c.context_length)
    return request_error("a context of {} tokens: the model was trained for 1 to {}", o.context,
                         c.context_length);
  if (o.max_sequences < 1 || o.max_sequences > 4096)
    return request_error("{} sequences: must be between 1 and 4096", o.max_sequences);
  if (o.max_batch_tokens < kChunkTokens || o.max_batch_tokens > 65536)
    return request_error("{} batch tokens: must be between {} and 65536", o.max_batch_tokens, kChunkTokens);
  constexpr int64_t kDefaultPool = 65536;
  if (o.kv_tokens == 0)
    o.kv_tokens = std::max(o.context, std::min(o.max_sequences * o.context, kDefaultPool));
  if (o.kv_tokens < o.context || o.kv_tokens > (int64_t{1} << 34))
    return request_error("a KV pool of {} tokens cannot hold one sequence of {}", o.kv_tokens, o.context);
  return o;
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
                                               EngineOptions options) {
  const auto start = std::chrono::steady_clock::now();
  QUIRE_TRY(options, resolve(std::move(options), model->model->config()));
  const int32_t blocks = blocks_for(options.kv_tokens), slots = options.max_sequences;
  QUIRE_TRY(CacheStorage storage,
            CacheStorage::create(model->model->cache_shape(options.device), blocks, slots));
  std::unique_ptr<Engine> engine(
      new Engine(std::move(model), std::move(options), std::move(storage), blocks, slots));
  engine->repack();
  engine->create_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return engine;
}

void Engine::repack() {
  if (options_.repack && for_few() && options_.device == Device::kCpu && repacking_helps())
    repacked_ = model_->repacked(pool_);
}

Engine::Engine(std::shared_ptr<const LoadedModel> model, EngineOptions options, CacheStorage storage,
               int32_t blocks, int32_t slots)
    : model_(std::move(model)),
      options_(std::move(options)),
      pool_(options_.threads),
      storage_(std::move(storage)),
      blocks_(blocks, options_.shuffle_blocks),
      slots_(slots) {}

Engine::~Engine() {
  for (auto& s : running_) s->table.clear(blocks_);
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
  return r.sampling.validate(vocab);
}

Result<RequestId> Engine::submit(Request request, Listener listener) {
  QUIRE_CHECKED(validate(request));
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  request.max_tokens = std::min(request.max_tokens, options_.context - prompt);
  QUIRE_TRY(StopMatcher stop, StopMatcher::create(request.stop));
  auto s = std::make_unique<Sequence>(std::move(request), std::move(listener), *model_, std::move(stop));
  s->max_blocks = blocks_for(prompt + s->request.max_tokens);
  const std::lock_guard lock(inbox_mutex_);
  s->id = RequestId{next_id_};
  next_id_ = next_id_ == INT32_MAX ? 0 : next_id_ + 1;
  unfinished_.fetch_add(1, std::memory_order_release);
  const RequestId id = s->id;
  inbox_.push_back(std::move(s));
  return id;
}

void Engine::cancel(RequestId id) {
  const std::lock_guard lock(inbox_mutex_);
  cancels_.push_back(id);
}

void Engine::take_incoming() {
  std::vector<std::unique_ptr<Sequence>> arrived;
  std::vector<RequestId> cancels;
  {
    const std::lock_guard lock(inbox_mutex_);
    arrived.swap(inbox_);
    cancels.swap(cancels_);
  }
  for (auto& s : arrived) waiting_.push_back(std::move(s));
  if (cancels.empty()) return;
  const auto cancelled = [&](const std::unique_ptr<Sequence>& s) {
    if (std::find(cancels.begin(), cancels.end(), s->id) == cancels.end()) return false;
    finish(*s, {.request = s->id, .finish = FinishReason::kCancelled});
    return true;
  };
  std::erase_if(running_, cancelled);
  std::erase_if(waiting_, cancelled);
}

SchedulerState Engine::snapshot() const {
  SchedulerState now;
  const auto describe_sequence = [](const Sequence& s) {
    return ScheduledSequence{.id = SeqId{s.id.v},
                             .prompt = s.prompt_tokens(),
                             .total = static_cast<int64_t>(s.tokens.size()),
                             .computed = s.computed,
                             .max_blocks = s.max_blocks};
  };
  for (const auto& s : running_) now.running.push_back(describe_sequence(*s));
  for (const auto& s : waiting_) now.waiting.push_back(describe_sequence(*s));
  now.total_blocks = blocks_.total();
  now.free_slots = slots_.free_count();
  now.needs_slots = model_->model->config().hybrid;
  return now;
}

void Engine::admit(SeqId id) {
  const auto it =
      std::find_if(waiting_.begin(), waiting_.end(), [&](const auto& s) { return s->id.v == id.v; });
  QUIRE_CHECK(it != waiting_.end(), "sequence {} is not waiting", id.v);
  if (model_->model->config().hybrid) {
    (*it)->slot = slots_.allocate();
    QUIRE_CHECK((*it)->slot.valid(), "the plan admits sequence {} without a state slot", id.v);
  }
  running_.push_back(std::move(*it));
  waiting_.erase(it);
}

bool Engine::step() {
  take_incoming();
  const StepPlan plan = plan_step(snapshot(), {options_.max_batch_tokens, options_.max_sequences});
  if (plan.work.empty()) return false;
  for (SeqId id : plan.admit) admit(id);
  ++stats_.steps;
  const std::span<const Work> all = plan.work;
  const size_t apart = for_few() ? plan.decodes : 0;
  if (apart > 0) run(all.first(apart), true);
  if (apart < all.size()) run(all.subspan(apart), false);
  std::erase_if(running_, [](const auto& s) { return s->finished; });
  return true;
}

namespace {

// The arrays of one step.
struct Batch {
  std::vector<int32_t> tokens;
  std::vector<Segment> segments;
  std::vector<int32_t> logit_rows;
  int64_t prompt_rows = 0;
};

}  // namespace

void Engine::run(std::span<const Work> works, bool generated) {
  const auto start = std::chrono::steady_clock::now();
  Batch batch;
  std::vector<BlockCopy> copies;
  std::vector<Sequence*> sampled_sequences;
  for (const Work& w : works) {
    const auto it =
        std::find_if(running_.begin(), running_.end(), [&](const auto& s) { return s->id.v == w.seq.v; });
    QUIRE_CHECK(it != running_.end(), "the plan runs sequence {}, which is not running", w.seq.v);
    Sequence& s = **it;
    const bool reserved = s.table.reserve(blocks_, w.begin, w.begin + w.count, copies);
    QUIRE_CHECK(reserved, "no block for sequence {}: {} of {} in use", w.seq.v, blocks_.used_count(),
                blocks_.total());
    const bool decode = w.begin >= s.prompt_tokens();
    batch.segments.push_back({.row = static_cast<int32_t>(batch.tokens.size()),
                              .count = w.count,
                              .position = static_cast<int32_t>(w.begin),
                              .state_slot = s.slot.v,
                              .blocks = s.table.data(),
                              .decode = decode});
    batch.tokens.insert(batch.tokens.end(), s.tokens.begin() + w.begin, s.tokens.begin() + w.begin + w.count);
    if (!decode) batch.prompt_rows += w.count;
    s.computed = w.begin + w.count;
    if (s.computed == static_cast<int64_t>(s.tokens.size())) {
      batch.logit_rows.push_back(static_cast<int32_t>(batch.tokens.size()) - 1);
      sampled_sequences.push_back(&s);
    }
  }
  const OpContext ctx = op_context();
  copy_slots(ctx, {.pools = storage_.block_pools(), .pairs = copies});

  Workspace::Scope scope(workspace_);
  const auto rows = static_cast<int64_t>(batch.logit_rows.size());
  const int64_t vocab = model_->model->config().vocab;
  const Tensor logits = make_tensor(scope.take<float>(rows * vocab), {rows, vocab});
  model_->model->forward(ctx,
                         {.tokens = batch.tokens,
                          .segments = batch.segments,
                          .logit_rows = batch.logit_rows,
                          .probe = options_.probe ? &options_.probe : nullptr,
                          .generated = generated},
                         storage_, logits);
  std::vector<SampleRow> sample_rows;
  sample_rows.reserve(sampled_sequences.size());
  for (const Sequence* s : sampled_sequences) sample_rows.push_back(s->sample_row());
  std::vector<Sampled> sampled(sample_rows.size());
  sample(ctx, {.logits = logits, .rows = sample_rows, .out = sampled});

  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const auto all = static_cast<int64_t>(batch.tokens.size());
  stats_.prompt_tokens += batch.prompt_rows;
  stats_.decode_tokens += all - batch.prompt_rows;
  stats_.prompt_seconds += seconds * static_cast<double>(batch.prompt_rows) / static_cast<double>(all);
  stats_.decode_seconds += seconds * static_cast<double>(all - batch.prompt_rows) / static_cast<double>(all);
  for (size_t i = 0; i < sampled.size(); ++i) commit(*sampled_sequences[i], sampled[i]);
}

void Engine::commit(Sequence& s, const Sampled& sampled) {
  if (sampled.token < 0) {
    TokenEvent e{.request = s.id, .finish = FinishReason::kError};
    e.error =
        Error{Fault::kModelFile, "the model's logits are not numbers: its file is damaged or not supported"};
    finish(s, e);
    return;
  }
  TokenEvent e = s.accept(sampled);
  if (e.finish != FinishReason::kNone) {
    finish(s, e);
  } else if (s.listener) {
    s.listener(e);
  }
}

void Engine::finish(Sequence& s, const TokenEvent& event) {
  s.finished = true;
  s.table.clear(blocks_);
  if (s.slot.valid()) slots_.release(s.slot);
  s.slot = {};
  if (s.listener) s.listener(event);
  unfinished_.fetch_sub(1, std::memory_order_release);
}

OpContext Engine::op_context() {
  return {.pool = pool_,
          .workspace = workspace_,
          .device = options_.device,
          .choice = &options_.kernels,
          .repacked = repacked_.get()};
}

MemoryUse Engine::memory() const {
  return {.mapped = static_cast<int64_t>(model_->file.mapped_bytes()),
          .converted = model_->model->owned_bytes(),
          .repacked = repacked_ ? repacked_->bytes() : 0,
          .kv_and_state = storage_.resident_bytes(),
          .workspace = static_cast<int64_t>(workspace_.high_water())};
}

Status Engine::check() const {
  QUIRE_CHECKED(blocks_.check());
  QUIRE_CHECKED(slots_.check());
  int64_t held = 0, slots = 0;
  for (const auto& s : running_) {
    held += static_cast<int64_t>(s->table.blocks().size());
    slots += s->slot.valid();
  }
  if (held != blocks_.used_count() || slots != slots_.used_count())
    return Error{Fault::kBug, fmt::format("sequences hold {} blocks and {} slots, the pools say {} and {}",
                                          held, slots, blocks_.used_count(), slots_.used_count())};
  return {};
}

}  // namespace quire
