#include "engine/cpu_backend.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "core/memory.h"
#include "engine/compute_step.h"
#include "engine/cuda_backend.h"
#include "ops/sampling/history.h"

namespace quire {
namespace {

// Gives weights their copies in the integer core's order.
class UseCopies final : public WeightPlacer {
 public:
  explicit UseCopies(const RepackedWeights& copies) : copies_(copies) {}
  void matrix(Weight& w) override { w = copies_.find(w); }
  void table(Weight&) override {}
  void vector(Tensor&) override {}

 private:
  const RepackedWeights& copies_;
};

double mib(int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

}  // namespace

Result<CpuBackend::Pages> CpuBackend::Pages::create(int64_t bytes, std::string_view what) {
  Pages p;
  const auto size = static_cast<size_t>((std::max<int64_t>(bytes, 1) + 4095) / 4096 * 4096);
  void* const at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED)
    return capacity_error("cannot reserve {:.0f} MiB for {} ({}); use fewer sequences", mib(bytes), what,
                          std::strerror(errno));
  p.bytes_ = {static_cast<std::byte*>(at), size};
  return p;
}

CpuBackend::Pages::~Pages() {
  if (!bytes_.empty()) munmap(bytes_.data(), bytes_.size());
}

Result<CacheStorage> CpuBackend::create_caches(const Model& model, const EngineOptions& options) {
  const int32_t windows = options.window_blocks(model.config());
  return CacheStorage::create(options.cache_shape(model.config()), {.blocks = options.kv_blocks(),
                                                                    .slots = options.state_slots(model.config()),
                                                                    .window_blocks = windows > 0 ? windows + 1 : 0});
}

Result<std::unique_ptr<CpuBackend>> CpuBackend::create(const std::shared_ptr<const LoadedModel>& model,
                                                       const EngineOptions& options) {
  QUIRE_TRY(CacheStorage storage, create_caches(*model->model, options));
  std::unique_ptr<CpuBackend> b(new CpuBackend(model, options, std::move(storage)));
  QUIRE_CHECKED(b->allocate());
  b->start();
  return b;
}

CpuBackend::CpuBackend(std::shared_ptr<const LoadedModel> model, const EngineOptions& options, CacheStorage storage)
    : model_(std::move(model)),
      options_(options),
      forced_(options.kernels),
      pool_(options.threads),
      storage_(std::move(storage)),
      layout_(options.step_capacity(model_->model->config())),
      result_layout_(layout_.capacity()) {}

Status CpuBackend::allocate() {
  const StepCapacity& c = layout_.capacity();
  const int64_t vocab = model_->model->config().vocab, seen = std::min(vocab, options_.context);
  for (Buffer& b : buffers_) {
    QUIRE_TRY(b.staging, Pages::create(layout_.bytes(), "the arrays of a step"));
    QUIRE_TRY(b.results, Pages::create(result_layout_.bytes(), "the results of a step"));
  }
  QUIRE_TRY(step_, Pages::create(layout_.bytes(), "the arrays of a step"));
  QUIRE_TRY(results_, Pages::create(result_layout_.bytes(), "the results of a step"));
  QUIRE_TRY(sampled_, Pages::create(c.sampled() * int64_t{4}, "sampled tokens"));
  QUIRE_TRY(kept_, Pages::create(int64_t{c.kept()} * c.width * 4, "hidden states for drafts"));
  QUIRE_TRY(history_, Pages::create(token_history_bytes(c.batch_slots, vocab, seen), "the history of penalties"));
  token_history_ = lay_out_token_history(history_.data(), c.batch_slots, vocab, seen);
  host_pages_ = host_pages_of(options_, *storage_.shape().block_bytes());
  QUIRE_TRY(host_,
            Pages::create(host_pages_.all() * *storage_.shape().block_bytes(), "what leaves the caches for the host"));
  repack();
  if (options_.mtp) {
    QUIRE_TRY(const MtpBlock* const block, model_->mtp());
    mtp_ = mtp_decoder(decoder(), block->weights, kDraftedTokens);
  }
  return measure();
}

void CpuBackend::repack() {
  if (!options_.repack || !options_.for_latency() || options_.device != Device::kCpu) return;
  repacked_ = model_->repacked(pool_, static_cast<int64_t>(storage_.memory().size()));
  if (repacked_ == nullptr) return;
  UseCopies use(*repacked_);
  placed_ = model_->model->decoder().placed(use);
}

const Decoder& CpuBackend::decoder() const {
  return placed_ ? *placed_ : model_->model->decoder();
}

int64_t CpuBackend::scratch_of(const StepShape& shape, std::span<const Segment> segments) {
  const StepArrays a = layout_.arrays(step_.data());
  const StepCapacity& c = layout_.capacity();
  std::ranges::copy(segments, a.segments);
  const SampleRow row{.temperature = 1.0f,
                      .top_p = 0.5f,
                      .typical_p = 0.5f,
                      .repetition_penalty = 2.0f,
                      .top_k = 10,
                      .logprobs = 1,
                      .history = 0};
  std::fill_n(a.sample_rows, shape.logit_rows, row);
  std::fill_n(a.score_rows, shape.scored_rows, SampleRow{.logprobs = 1, .target = 0});
  SampleRow draft = row;  // has no history and reports nothing
  draft.history = draft.logprobs = -1;
  for (int32_t j = 0; j < shape.draft_passes; ++j) {
    Segment* const pass = std::ranges::copy(segments, a.draft_segments + int64_t{j} * c.segments).out - shape.segments;
    for (int32_t i = 0; i < shape.decodes; ++i) pass[i].row = i, pass[i].count = 1, pass[i].tentative = 0;
    std::fill_n(a.draft_samples + int64_t{j} * c.segments, shape.decodes, draft);
  }
  Workspace all;
  pool_.set_dry(true);
  compute(shape, all);
  pool_.set_dry(false);
  std::memset(step_.data(), 0, static_cast<size_t>(layout_.used_bytes(shape)));
  return all.high_water();
}

// The scratch memory of every operator grows with a step's rows, with its segments, and with the rows of its longest
// segment; rows of generated tokens, which have kernels of their own, are computed by themselves. So two steps take as
// much as any other: one with as many generated tokens and drafts as there can be, and one without any, of prompts that
// are as long as they can be; both with as many segments as there can be, of which some may have no row.
Status CpuBackend::measure() {
  const StepCapacity& c = layout_.capacity();
  const auto context = static_cast<int32_t>(options_.context);
  int64_t needed = 0;
  for (const int32_t decodes : {0, c.segments}) {
    std::vector<Segment> segments(static_cast<size_t>(c.segments));
    int32_t row = 0, drafts = c.logit_rows - c.segments;
    for (Segment& s : segments) {
      const int32_t tentative = decodes > 0 ? std::min({options_.most_drafts(), drafts, context - 1}) : 0;
      const int32_t count = decodes > 0 ? 1 + tentative : std::min(c.rows - row, context);
      const int32_t position = decodes > 0 ? context - count : (context - count) / kChunkTokens * kChunkTokens;
      s = {.row = row,
           .count = count,
           .position = position,
           .state_slot = 0,
           .anchor = position,
           .tentative = tentative};
      row += count;
      drafts -= tentative;
    }
    const bool mtp = c.drafts > 0;
    needed = std::max(needed, scratch_of({.rows = c.rows,
                                          .decode_rows = decodes > 0 ? row : 0,
                                          .segments = c.segments,
                                          .decodes = decodes,
                                          .logit_rows = c.logit_rows,
                                          .decode_logit_rows = decodes > 0 ? row : 0,
                                          .hidden_rows = c.hidden_rows,
                                          .scored_rows = c.scored_rows,
                                          .table_width = c.table_width,
                                          .longest = context,
                                          .most_rows = 1 + options_.most_drafts(),
                                          .draft_passes = mtp && decodes > 0 ? c.drafts : 0,
                                          .follows = mtp},
                                         segments));
  }
  const int64_t available = available_memory();
  if (needed > available)
    return capacity_error(
        "steps of {} tokens for {} sequences take {:.0f} MiB of scratch memory, and {:.0f} MiB are available; use "
        "fewer --batch-tokens or sequences",
        c.rows, c.segments, mib(needed), mib(available));
  largest_scratch_ = needed;
  QUIRE_TRY(workspace_, Workspace::create(needed));
  return {};
}

void CpuBackend::start() {
  leave();
  thread_ = std::thread([this] { work(); });
}

void CpuBackend::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

CpuBackend::~CpuBackend() {
  stop();
}

std::vector<std::span<std::byte>> CpuBackend::regions() const {
  return {storage_.memory(), workspace_->memory(), step_.span(), results_.span(),
          sampled_.span(),   history_.span(),      kept_.span(), host_.span()};
}

OpContext CpuBackend::context(Workspace& workspace) {
  return {.pool = pool_,
          .workspace = workspace,
          .machine = {options_.device},
          .choice = &options_.kernels,
          .forced = pool_.dry() ? nullptr : &forced_};
}

void CpuBackend::submit(int buffer, const StepShape& shape) {
  Buffer& b = buffers_[buffer];
  const StepBatch step = layout_.batch(b.staging.data(), shape, nullptr);
  check_segments(step.segments, shape.rows, blocks(), slots());
  if (window_blocks() > 0) check_segments(step.windows, shape.rows, window_blocks() + 1, 0);
  check_copies(
      layout_.arrays(b.staging.data()), shape,
      {blocks(), slots(), host_pages_.all(), *storage_.shape().block_bytes(), *storage_.shape().state_bytes()});
  const std::lock_guard lock(mutex_);
  QUIRE_CHECK(b.stage != Stage::kSubmitted && queued_ < kMostDepth, "step buffer {} is under way", buffer);
  b.shape = shape;
  b.has_masks = shape.masks == 0;
  b.waits_for_masks = false;
  b.has_drafts = false;
  b.stage = Stage::kSubmitted;
  queue_[queued_++] = buffer;
  changed_.notify_all();
}

bool CpuBackend::masks_written(int buffer) {
  const std::lock_guard lock(mutex_);
  buffers_[buffer].has_masks = true;
  changed_.notify_all();
  return buffers_[buffer].waits_for_masks;
}

Result<Tensor> CpuBackend::await_drafts(int buffer) {
  Buffer& b = buffers_[buffer];
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return b.has_drafts; });
  return result_layout_.drafts(b.results.data());
}

void CpuBackend::take_drafts() {
  const Tensor drafts = result_layout_.drafts(running_->results.data());
  std::memcpy(drafts.data, sampled_.data() + layout_.capacity().batch_slots * sizeof(int32_t),
              static_cast<size_t>(drafts.bytes()));
  const std::lock_guard lock(mutex_);
  running_->has_drafts = true;
  changed_.notify_all();
}

void CpuBackend::await_masks() {
  std::unique_lock lock(mutex_);
  running_->waits_for_masks = !running_->has_masks;
  changed_.wait(lock, [&] { return running_->has_masks; });
  const int64_t at = layout_.later_begin();
  std::memcpy(step_.data() + at, running_->staging.data() + at,
              static_cast<size_t>(layout_.later_bytes(running_->shape)));
}

Result<StepResults> CpuBackend::wait(int buffer) {
  Buffer& b = buffers_[buffer];
  std::unique_lock lock(mutex_);
  QUIRE_CHECK(b.stage != Stage::kIdle, "step buffer {} was never submitted", buffer);
  changed_.wait(lock, [&] { return b.stage == Stage::kDone; });
  b.stage = Stage::kIdle;
  return b.done;
}

void CpuBackend::work() {
  for (;;) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stopping_ || queued_ > 0; });
    if (stopping_) return;
    Buffer& b = buffers_[queue_[0]];
    lock.unlock();
    run(b);
    lock.lock();
    std::copy(queue_ + 1, queue_ + queued_, queue_);
    --queued_;
    b.stage = Stage::kDone;
    changed_.notify_all();
  }
}

void CpuBackend::run(Buffer& b) {
  enter();
  running_ = &b;
  const auto begin = std::chrono::steady_clock::now();
  std::memcpy(step_.data(), b.staging.data(), static_cast<size_t>(layout_.used_bytes(b.shape)));
  swap(layout_.arrays(b.staging.data()), b.shape);
  const StepBatch batch = layout_.batch(step_.data(), b.shape, nullptr);
  compute(b.shape, *workspace_);
  const bool tops = reports_tops(batch.arrays.sample_rows, b.shape.logit_rows);
  std::memcpy(b.results.data(), results_.data(), static_cast<size_t>(result_layout_.used_bytes(tops)));
  b.done.out = result_layout_.outputs(b.results.data(), b.shape.logit_rows);
  b.done.hidden = result_layout_.hidden(b.results.data(), b.shape.hidden_rows);
  if (b.shape.hidden_rows > 0)
    std::memcpy(b.done.hidden.data, result_layout_.hidden(results_.data(), 0).data,
                static_cast<size_t>(b.done.hidden.bytes()));
  b.done.scored = result_layout_.scored(b.results.data(), b.shape.scored_rows);
  if (b.shape.scored_rows > 0)
    std::memcpy(b.results.data() + result_layout_.scored_begin(), results_.data() + result_layout_.scored_begin(),
                static_cast<size_t>(result_layout_.scored_bytes(reports_tops(batch.arrays.score_rows, b.shape.scored_rows))));
  b.done.drafts = result_layout_.drafts(b.results.data());
  if (b.shape.draft_passes > 0)
    std::memcpy(b.done.drafts.data, sampled_.data() + layout_.capacity().batch_slots * sizeof(int32_t),
                static_cast<size_t>(b.done.drafts.bytes()));
  b.done.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  leave();
}

void CpuBackend::swap(const StepArrays& a, const StepShape& shape) {
  const int64_t block = *storage_.shape().block_bytes(), state = *storage_.shape().state_bytes();
  std::byte* const blocks_at = storage_.blocks().bytes_at(0);
  std::byte* const slots_at = storage_.slots().bytes_at(0);
  const auto move = [&](const HostMove& m, bool out) {
    const MoveBytes b = bytes_of(m, block, state);
    std::byte* const device = (b.state ? slots_at : blocks_at) + b.device_offset;
    std::byte* const host = host_.data() + b.host_offset;
    std::memcpy(out ? host : device, out ? device : host, static_cast<size_t>(b.count));
  };
  for (int32_t i = 0; i < shape.swap_outs; ++i) move(a.swap_outs[i], true);
  for (int32_t i = 0; i < shape.swap_ins; ++i) move(a.swap_ins[i], false);
}

void CpuBackend::compute(const StepShape& shape, Workspace& workspace) {
  std::span<const int32_t> suppressed;
  if (model_->tokenizer) suppressed = model_->tokenizer->suppress_tokens();
  auto* const sampled = reinterpret_cast<int32_t*>(sampled_.data());
  std::byte* const results = results_.data();
  const StepCapacity& c = layout_.capacity();
  compute_step(context(workspace), {decoder(), mtp_ ? &*mtp_ : nullptr}, layout_.batch(step_.data(), shape, sampled),
               layout_.drafts(step_.data(), shape, sampled, result_layout_.outputs(results, shape.logit_rows).tokens),
               {.latency = options_.for_latency(), .probe = options_.probe && !pool_.dry() ? &options_.probe : nullptr},
               {.cache = storage_,
                .kept = make_tensor(kept_.data(), DType::kF32, {c.kept(), c.width}),
                .history = token_history_,
                .suppressed = suppressed,
                .out = result_layout_.outputs(results, shape.logit_rows),
                .scored = result_layout_.scored(results, shape.scored_rows),
                .hidden = result_layout_.hidden(results, shape.hidden_rows),
                .drafts_made = &drafts_made_,
                .await_masks = &await_masks_});
}

Status CpuBackend::read_blocks(std::span<const BlockId> blocks, std::span<std::byte> to) {
  enter();
  const auto bytes = static_cast<size_t>(*storage_.shape().block_bytes());
  for (size_t i = 0; i < blocks.size(); ++i)
    std::memcpy(to.data() + i * bytes, storage_.blocks().row<float>(blocks[i].v), bytes);
  leave();
  return {};
}

Status CpuBackend::read_state(StateSlot slot, std::span<std::byte> to) {
  enter();
  std::memcpy(to.data(), storage_.slots().row<float>(slot.v), to.size());
  leave();
  return {};
}

Status CpuBackend::write_blocks(std::span<const BlockId> blocks, std::span<const std::byte> from) {
  enter();
  const auto bytes = static_cast<size_t>(*storage_.shape().block_bytes());
  for (size_t i = 0; i < blocks.size(); ++i)
    std::memcpy(storage_.blocks().row<float>(blocks[i].v), from.data() + i * bytes, bytes);
  leave();
  return {};
}

Status CpuBackend::write_state(StateSlot slot, std::span<const std::byte> from) {
  enter();
  std::memcpy(storage_.slots().row<float>(slot.v), from.data(), from.size());
  leave();
  return {};
}

Status CpuBackend::read_windows(std::span<const BlockId> blocks, std::span<std::byte> to) {
  enter();
  const auto bytes = static_cast<size_t>(*storage_.shape().window_block_bytes());
  for (size_t i = 0; i < blocks.size(); ++i)
    if (blocks[i].valid()) std::memcpy(to.data() + i * bytes, storage_.window_blocks().row<float>(blocks[i].v), bytes);
  leave();
  return {};
}

Status CpuBackend::write_windows(std::span<const BlockId> blocks, std::span<const std::byte> from) {
  enter();
  const auto bytes = static_cast<size_t>(*storage_.shape().window_block_bytes());
  for (size_t i = 0; i < blocks.size(); ++i)
    if (blocks[i].valid())
      std::memcpy(storage_.window_blocks().row<float>(blocks[i].v), from.data() + i * bytes, bytes);
  leave();
  return {};
}

Status CpuBackend::read_pages(std::span<const int32_t> pages, std::span<std::byte> to) {
  enter();
  copy_from_pages(pages, {host_.data(), static_cast<size_t>(*storage_.shape().block_bytes())}, to);
  leave();
  return {};
}

Status CpuBackend::write_pages(std::span<const int32_t> pages, std::span<const std::byte> from) {
  enter();
  copy_to_pages(pages, {host_.data(), static_cast<size_t>(*storage_.shape().block_bytes())}, from);
  leave();
  return {};
}

BackendMemory CpuBackend::memory() const {
  return {.repacked = repacked_ ? repacked_->bytes() : 0,
          .kv_and_state = storage_.resident_bytes(),
          .workspace = static_cast<int64_t>(workspace_->memory().size())};
}

std::vector<ForcedCount> CpuBackend::forced() const {
  return {forced_.all().begin(), forced_.all().end()};
}

std::string numerics_of(const Machine& m, const KernelChoice& forced) {
  std::string s = "reference";
  if (m.device == Device::kCpu) s = fmt::format("cpu {}", describe(m.cpu));
  if (m.device == Device::kCuda)
    s = fmt::format("cuda sm_{}{}{}", m.gpu.major, m.gpu.minor, m.gpu.wgmma ? "" : " mma.sync");
  for (const auto& [op, kernel] : forced.forced) s += fmt::format(" {}={}", op, kernel);
  return s;
}

std::string CpuBackend::numerics() const {
  return numerics_of({.device = options_.device}, options_.kernels);
}

void copy_from_pages(std::span<const int32_t> pages, const PageMemory& memory, std::span<std::byte> to) {
  for (size_t i = 0; i < pages.size() && i * memory.bytes < to.size(); ++i)
    std::memcpy(to.data() + i * memory.bytes, memory.page(pages[i]),
                std::min(memory.bytes, to.size() - i * memory.bytes));
}

void copy_to_pages(std::span<const int32_t> pages, const PageMemory& memory, std::span<const std::byte> from) {
  for (size_t i = 0; i < pages.size() && i * memory.bytes < from.size(); ++i)
    std::memcpy(memory.page(pages[i]), from.data() + i * memory.bytes,
                std::min(memory.bytes, from.size() - i * memory.bytes));
}

HostPages host_pages_of(const EngineOptions& options, int64_t block_bytes) {
  if (block_bytes <= 0) return {};
  const int64_t longest = (options.context + kBlockTokens - 1) / kBlockTokens,
                swap =
                    std::min({options.swap_bytes / block_bytes, longest * options.max_sequences, int64_t{INT32_MAX}}),
                cache = options.prefix_cache ? options.prefix_host_bytes / block_bytes : 0;
  return {static_cast<int32_t>(swap), static_cast<int32_t>(std::min(cache, INT32_MAX - swap))};
}

Result<MemoryOfEngine> memory_for(const std::shared_ptr<const LoadedModel>& model, const EngineOptions& options) {
  if (options.device == Device::kCuda) return place_on_gpu(model, options);
  // What was made of a folder is in use already; what is mapped is read for every token.
  const int64_t mapped = static_cast<int64_t>(model->file.mapped_bytes()) - model->file.made_bytes();
  int64_t host = std::max<int64_t>(available_memory() - mapped, 0);
  // Where weights are repacked, that comes before a longer context.
  if (options.device == Device::kCpu && options.repack && options.max_sequences > 0 && options.for_latency()) {
    const int64_t copies = RepackedWeights::bytes_for(model->model->matrices());
    if (copies <= host / 2) host -= copies;
  }
  return MemoryOfEngine{.memory = {.host = host}};
}

Result<std::unique_ptr<Backend>> make_backend(const std::shared_ptr<const LoadedModel>& model,
                                              const EngineOptions& options) {
  if (options.device == Device::kCuda) return make_cuda_backend(model, options);
  QUIRE_TRY(std::unique_ptr<CpuBackend> cpu, CpuBackend::create(model, options));
  return std::unique_ptr<Backend>(std::move(cpu));
}

}  // namespace quire
