#include "engine/cuda_backend.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "core/cuda/device.h"
#include "core/cuda/launch.h"
#include "core/cuda/memory.h"
#include "core/log.h"
#include "engine/compute_step.h"
#include "engine/cuda_graphs.h"
#include "engine/cuda_moves.h"
#include "engine/cuda_weights.h"
#include "engine/gpu_plan.h"
#include "engine/gpu_step_log.h"
#include "ops/cuda/context.h"
#include "ops/sampling/history.h"

namespace quire {
namespace {

using cuda::Memory;

double gib(int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 30);
}

class CudaBackend final : public Backend {
 public:
  CudaBackend(std::shared_ptr<const LoadedModel> model, const EngineOptions& options)
      : model_(std::move(model)),
        options_(options),
        forced_(options.kernels),
        pool_(1),
        layout_(options.step_capacity(model_->model->config())),
        result_layout_(layout_.capacity()),
        log_(options.launches, cuda::launched_kernels) {}
  ~CudaBackend() override;
  Status create();

  const StepLayout& layout() const override { return layout_; }
  int32_t blocks() const override { return blocks_; }
  int32_t slots() const override { return slots_; }
  const CacheShape& cache_shape() const override { return views_.shape(); }
  HostPages host_pages() const override { return host_pages_; }
  std::byte* staging(int buffer) override { return buffers_[buffer].staging.data(); }
  void submit(int buffer, const StepShape& shape) override;
  void masks_written(int buffer) override;
  Result<StepResults> wait(int buffer) override;
  bool lost() const override { return lost_; }
  bool likes_even_rows() const override { return options_.graphs; }
  Status read_blocks(std::span<const BlockId> blocks, std::span<std::byte> to) override;
  Status read_state(StateSlot slot, std::span<std::byte> to) override;
  Status write_blocks(std::span<const BlockId> blocks, std::span<const std::byte> from) override;
  Status write_state(StateSlot slot, std::span<const std::byte> from) override;
  Status read_pages(std::span<const int32_t> pages, std::span<std::byte> to) override {
    copy_from_pages(pages, {moves_.pages(), static_cast<size_t>(*views_.shape().block_bytes())}, to);
    return {};
  }
  Status write_pages(std::span<const int32_t> pages, std::span<const std::byte> from) override {
    copy_to_pages(pages, {moves_.pages(), static_cast<size_t>(*views_.shape().block_bytes())}, from);
    return {};
  }
  BackendMemory memory() const override;
  // Tensor cores of another generation may add in another order.
  std::string numerics() const override { return numerics_of(machine_, options_.kernels); }
  // Of steps that are replayed, when they were captured.
  std::vector<ForcedCount> forced() const override { return {forced_.all().begin(), forced_.all().end()}; }

 private:
  struct Buffer {
    Memory staging, results;  // pinned
    cudaEvent_t begin = nullptr, end = nullptr;
    StepShape shape;
    bool ready = false;  // what comes before the pass was enqueued
    Status status;
  };
  Status create_buffers();
  Status create_fixed();
  Status rehearse();
  Status create_caches();
  void capture_graphs();
  Result<int64_t> measure();
  // CUDA's calls are for a thread's current device.
  void use_gpu() const { (void)cudaSetDevice(options_.gpu); }
  Error failed(const Buffer& b, Error error);
  void launch_step(Buffer& b);
  void enqueue(Buffer& b);
  void move(const Buffer& b);
  bool replayable(const StepShape& s) const;
  void run(const StepShape& padded, const StepShape& actual);
  cudaGraphExec_t graph_of(const GraphSize& size);
  Status capture(const GraphSize& size);
  Status launch(const StepShape& shape);
  void compute(const StepShape& shape, Workspace& workspace, bool only_chooses = false);

  std::shared_ptr<const LoadedModel> model_;
  EngineOptions options_;
  Machine machine_;
  ForcedCounts forced_;
  ThreadPool pool_;  // operators expect one
  std::shared_ptr<const CudaWeights> weights_;
  StepLayout layout_;
  ResultLayout result_layout_;
  cuda::Context context_;
  Memory step_, results_, sampled_, history_, kept_, suppressed_, scratch_, caches_;
  std::optional<Workspace> workspace_;
  TokenHistory token_history_;
  CacheViews views_;
  HostPages host_pages_;
  int32_t blocks_ = 0, slots_ = 0, suppressed_count_ = 0;
  int64_t graph_kernels_ = 0;  // of a captured step
  bool lost_ = false;
  Buffer buffers_[kMostDepth];
  const Buffer* last_ = nullptr;  // submitted before: perhaps still under way
  StepUse use_;                   // of the last one
  CudaMoves moves_;
  CudaFileCopies file_copies_;
  CudaGraphs graphs_;
  GpuStepLog log_;
};

CudaBackend::~CudaBackend() {
  use_gpu();
  if (context_.stream != nullptr) cudaStreamSynchronize(context_.stream);
  for (Buffer& b : buffers_) {
    if (b.begin != nullptr) cudaEventDestroy(b.begin);
    if (b.end != nullptr) cudaEventDestroy(b.end);
  }
}

Status CudaBackend::create() {
  using Clock = std::chrono::steady_clock;
  Clock::time_point last = Clock::now();
  const auto seconds = [&last] {
    const Clock::time_point now = Clock::now();
    return std::chrono::duration<double>(now - std::exchange(last, now)).count();
  };
  QUIRE_CHECKED(choose_gpu(*model_, options_.gpu, options_.kv_cache));
  QUIRE_CHECKED(check_gpu_options(options_));
  QUIRE_TRY(machine_, gpu_machine());
  QUIRE_CHECKED(context_.create());
  QUIRE_TRY(weights_, model_->on_gpu(options_.threads, options_.mtp));
  const double device = seconds();
  QUIRE_CHECKED(create_buffers());
  QUIRE_CHECKED(create_fixed());
  QUIRE_CHECKED(rehearse());
  const double fixed = seconds();
  QUIRE_CHECKED(create_caches());
  const double caches = seconds();
  capture_graphs();
  log_info(fmt::format(
      "cuda: GPU {:.2f} s, arrays and scratch {:.2f} s ({:.2f} GiB), caches {:.2f} s ({:.2f} "
      "GiB), {} graphs of up to {} "
      "kernels {:.2f} s",
      device, fixed, gib(scratch_.bytes()), caches, gib(caches_.bytes()), graphs_.count(), graph_kernels_, seconds()));
  return {};
}

Status CudaBackend::create_buffers() {
  for (Buffer& b : buffers_) {
    QUIRE_TRY(b.staging, Memory::create(Memory::Where::kPinned, layout_.bytes(), "the arrays of a step"));
    QUIRE_TRY(b.results, Memory::create(Memory::Where::kPinned, result_layout_.bytes(), "the results of a step"));
    QUIRE_CHECKED(cuda::check(cudaEventCreate(&b.begin), "creating an event"));
    QUIRE_CHECKED(cuda::check(cudaEventCreate(&b.end), "creating an event"));
  }
  return {};
}

// Everything but the caches.
Status CudaBackend::create_fixed() {
  const StepCapacity& c = layout_.capacity();
  const int64_t vocab = model_->model->config().vocab, seen = std::min(vocab, options_.context);
  const auto device = [](int64_t bytes, std::string_view what) {
    return Memory::create(Memory::Where::kDevice, bytes, what);
  };
  QUIRE_TRY(step_, device(layout_.bytes(), "the arrays of a step"));
  QUIRE_TRY(results_, device(result_layout_.bytes(), "the results of a step"));
  QUIRE_TRY(sampled_, device(c.sampled() * int64_t{4}, "sampled tokens"));
  QUIRE_TRY(kept_, device(int64_t{c.kept()} * c.width * 4, "hidden states for drafts"));
  QUIRE_TRY(history_, device(token_history_bytes(c.batch_slots, vocab, seen), "the history of penalties"));
  token_history_ = lay_out_token_history(history_.data(), c.batch_slots, vocab, seen);
  for (const Memory* m : {&step_, &sampled_, &history_, &kept_})
    QUIRE_CHECKED(cuda::check(cudaMemset(m->data(), 0, static_cast<size_t>(m->bytes())), "clearing memory"));
  std::span<const TokenId> suppressed;
  if (model_->tokenizer) suppressed = model_->tokenizer->suppress_tokens();
  suppressed_count_ = static_cast<int32_t>(suppressed.size());
  QUIRE_TRY(suppressed_, device(static_cast<int64_t>(suppressed.size_bytes()), "suppressed tokens"));
  if (suppressed_count_ > 0)
    QUIRE_CHECKED(
        cuda::check(cudaMemcpy(suppressed_.data(), suppressed.data(), suppressed.size_bytes(), cudaMemcpyHostToDevice),
                    "suppressed tokens"));
  QUIRE_TRY(const int64_t scratch, measure());
  QUIRE_TRY(scratch_, device(scratch, "activations and scratch"));
  workspace_ = Workspace::over(scratch_.span());
  return {};
}

// Enqueues a step of prompts, one of generated tokens and one of both without computing them: what no kernel takes, and
// a launch that the driver refuses, is found now and not by the first request. Kernels are loaded by it, too.
Status CudaBackend::rehearse() {
  const StepCapacity& c = layout_.capacity();
  // Addresses that nothing is read from.
  views_ = CacheViews(options_.cache_shape(model_->model->config()), scratch_.data(), 1, 1);
  const GraphSize largest = graph_sizes(c).front();
  const StepShape decodes = shape_of(largest, c);
  StepShape prompt{.rows = c.rows, .segments = 1, .logit_rows = 1, .table_width = c.table_width};
  prompt.hidden_rows = c.hidden_rows > 0 ? 1 : 0;
  std::vector<StepShape> steps = {decodes, shape_of({1, largest.width}, c), prompt};
  if (c.segments > 1) {
    StepShape both = prompt;
    both.segments = both.logit_rows = 2;
    both.decode_rows = both.decodes = both.decode_logit_rows = 1;
    both.decode_keys = largest.width * int64_t{kBlockTokens};
    steps.push_back(both);
  }
  if (c.logit_rows > c.segments) {
    const int32_t drafts = options_.most_drafts();
    steps.push_back(shape_of({1, largest.width, 1 + drafts, c.drafts > 0 ? drafts : 0}, c));
  }
  for (const StepShape& step : steps) {
    Result<int64_t> kernels = CudaGraphs::rehearse(context_.stream, [&] { return launch(step); });
    if (!kernels.ok()) return request_error("this GPU cannot compute the model: {}", kernels.error().message);
    graph_kernels_ = std::max(graph_kernels_, *kernels);
  }
  log_.forget();
  return {};
}

// KV blocks and state slots from what the others leave of the cap.
Status CudaBackend::create_caches() {
  const CacheShape shape = options_.cache_shape(model_->model->config());
  const std::optional<int64_t> block = shape.block_bytes(), slot = shape.state_bytes();
  QUIRE_TRY(const GpuMemory m, gpu_memory(weights_->bytes()));
  const auto cap = static_cast<int64_t>(static_cast<double>(m.total) * options_.gpu_memory_utilization);
  const int64_t speculating = options_.most_drafts() > 0 ? CudaGraphs::kMostSpeculating : 0;
  const int64_t graphs = options_.graphs ? std::ssize(graph_sizes(layout_.capacity())) + speculating : 0;
  const int64_t has = cap - m.used - CudaGraphs::estimated_bytes(graphs, graph_kernels_);
  slots_ = options_.state_slots(model_->model->config());
  const int32_t own = std::min(slots_, options_.max_sequences);
  const int64_t one = (options_.context + kBlockTokens - 1) / kBlockTokens;
  if (block && slot) slots_ = own + saved_states(slots_ - own, has - *slot * own, *slot, *block * one);
  const int64_t left = has - (slot ? *slot * slots_ : 0);
  const int64_t wanted = options_.kv_is_bound ? one : options_.kv_blocks();
  if (!block || !slot || left < *block * wanted)
    return capacity_error(
        "{} do not fit the GPU: of {:.1f} GiB, {:.0f}% may be used, {:.1f} GiB are in use with weights "
        "({:.1f} GiB) and scratch memory for steps of {} tokens and {} sequences ({:.1f} GiB), and {} tokens "
        "of keys and "
        "values need {:.2f} GiB beside {} recurrent states of {:.3f} GiB; use a shorter --context, fewer "
        "sequences, "
        "smaller steps, or a higher --gpu-memory-utilization",
        model_->model->config().name.empty() ? "the model and its caches" : model_->model->config().name, gib(m.total),
        options_.gpu_memory_utilization * 100, gib(m.used), gib(weights_->bytes()), options_.max_batch_tokens,
        options_.max_sequences, gib(scratch_.bytes()), wanted * kBlockTokens, block ? gib(*block * wanted) : 0.0,
        slots_, slot ? gib(*slot) : 0.0);
  blocks_ = static_cast<int32_t>(std::min<int64_t>(options_.kv_blocks(), *block == 0 ? INT32_MAX : left / *block));
  const int64_t bytes = *CacheViews::bytes(shape, blocks_, slots_);
  QUIRE_TRY(caches_, Memory::create(Memory::Where::kDevice, bytes, "KV blocks and recurrent states"));
  QUIRE_CHECKED(cuda::check(cudaMemset(caches_.data(), 0, static_cast<size_t>(bytes)), "clearing the caches"));
  views_ = CacheViews(shape, caches_.data(), blocks_, slots_);
  host_pages_ = host_pages_of(options_, *block);
  return moves_.create(host_pages_.all() * *block);
}

// The largest first: if memory ends, those are missing that save least. Without graphs everything is computed as well.
void CudaBackend::capture_graphs() {
  if (!options_.graphs) return;
  const std::vector<GraphSize> sizes = graph_sizes(layout_.capacity());
  const Status done = graphs_.capture(context_.stream, sizes, [this](const GraphSize& size) { return capture(size); });
  log_.forget();  // of one that failed
  if (!done.ok())
    log_warning(fmt::format("{} of {} graphs are captured ({}): other steps launch their kernels one by one",
                            graphs_.count(), sizes.size(), done.error().message));
}

// Scratch memory of the largest steps: operators take it from a range of the host's addresses, which nobody touches.
Result<int64_t> CudaBackend::measure() {
  const StepCapacity& c = layout_.capacity();
  Workspace all;
  views_ = CacheViews(options_.cache_shape(model_->model->config()), nullptr, 1, 1);
  context_.dry = true;
  // All sequences read prompts, or all generate: what operators take grows with the number of either.
  for (const int32_t decodes : {0, c.segments}) {
    StepShape s{.rows = c.rows,
                .decode_rows = decodes > 0 ? c.logit_rows : 0,
                .segments = std::max(1, c.segments),
                .decodes = decodes,
                .logit_rows = c.logit_rows,
                .decode_logit_rows = decodes > 0 ? c.logit_rows : 0,
                .hidden_rows = c.hidden_rows,
                .scored_rows = c.scored_rows};
    s.most_rows = 1 + options_.most_drafts();
    s.follows = c.drafts > 0;
    if (decodes > 0) s.draft_passes = c.drafts;
    s.table_width = c.table_width;
    s.decode_keys = int64_t{decodes} * options_.context;
    compute(s, all);
  }
  context_.dry = false;
  QUIRE_CHECKED(std::exchange(context_.status, Status{}));
  return all.high_water() + (int64_t{1} << 20);
}

void CudaBackend::submit(int buffer, const StepShape& shape) {
  Buffer& b = buffers_[buffer];
  check_segments(layout_.batch(b.staging.data(), shape, nullptr).segments, shape.rows, blocks_, slots_);
  check_copies(layout_.arrays(b.staging.data()), shape,
               {blocks_, slots_, host_pages_.all(), *views_.shape().block_bytes(), *views_.shape().state_bytes()});
  b.shape = shape;
  if (shape.masks == 0) launch_step(b);
}

void CudaBackend::masks_written(int buffer) {
  launch_step(buffers_[buffer]);
}

void CudaBackend::launch_step(Buffer& b) {
  use_gpu();
  enqueue(b);
  b.status = std::exchange(context_.status, Status{});
  last_ = &b;
}

void CudaBackend::enqueue(Buffer& b) {
  const cudaStream_t stream = context_.stream;
  const auto keep = [&](cudaError_t code, std::string_view what) { context_.keep(cuda::check(code, what)); };
  const StepShape padded = replayable(b.shape) ? pad_step(layout_, b.staging.data(), b.shape) : b.shape;
  keep(cudaEventRecord(b.begin, stream), "recording an event");
  keep(cudaMemcpyAsync(step_.data(), b.staging.data(), static_cast<size_t>(layout_.used_bytes(padded)),
                       cudaMemcpyHostToDevice, stream),
       "copying a step to the GPU");
  if (b.shape.masks > 0)
    keep(cudaMemcpyAsync(step_.data() + layout_.masks_begin(), b.staging.data() + layout_.masks_begin(),
                         static_cast<size_t>(layout_.mask_bytes(b.shape)), cudaMemcpyHostToDevice, stream),
         "copying masks to the GPU");
  move(b);
  b.ready = context_.status.ok();
  run(padded, b.shape);
  const StepBatch host = layout_.batch(b.staging.data(), b.shape, nullptr);
  const bool tops = reports_tops(host.sample_rows, b.shape.logit_rows);
  keep(cudaMemcpyAsync(b.results.data(), results_.data(), static_cast<size_t>(result_layout_.used_bytes(tops)),
                       cudaMemcpyDeviceToHost, stream),
       "copying results from the GPU");
  if (b.shape.hidden_rows > 0) {
    const Tensor hidden = result_layout_.hidden(results_.data(), b.shape.hidden_rows);
    keep(cudaMemcpyAsync(result_layout_.hidden(b.results.data(), 0).data, hidden.data,
                         static_cast<size_t>(hidden.bytes()), cudaMemcpyDeviceToHost, stream),
         "copying hidden states from the GPU");
  }
  if (b.shape.scored_rows > 0) {
    const int64_t at = result_layout_.scored_begin(),
                  bytes = result_layout_.scored_bytes(reports_tops(host.score_rows, b.shape.scored_rows));
    keep(cudaMemcpyAsync(b.results.data() + at, results_.data() + at, static_cast<size_t>(bytes),
                         cudaMemcpyDeviceToHost, stream),
         "copying log-probabilities of prompts from the GPU");
  }
  if (b.shape.draft_passes > 0) {
    const Tensor drafts = result_layout_.drafts(b.results.data());
    keep(cudaMemcpyAsync(drafts.data, sampled_.data() + layout_.capacity().batch_slots * sizeof(int32_t),
                         static_cast<size_t>(drafts.bytes()), cudaMemcpyDeviceToHost, stream),
         "copying drafts from the GPU");
  }
  keep(cudaEventRecord(b.end, stream), "recording an event");
}

// Outside of captured launches, and behind those of the step before as far as they must be.
void CudaBackend::move(const Buffer& b) {
  if (b.shape.swap_outs == 0 && b.shape.swap_ins == 0) return;
  use_.clear();
  const Buffer* const before = last_ == &b ? nullptr : last_;  // a buffer that is used again was waited for
  if (before != nullptr) use_.note(layout_.batch(before->staging.data(), before->shape, nullptr), blocks_, slots_);
  const StepLayout::Arrays a = layout_.arrays(b.staging.data());
  moves_.enqueue(context_, {.outs = {a.swap_outs, static_cast<size_t>(b.shape.swap_outs)},
                            .ins = {a.swap_ins, static_cast<size_t>(b.shape.swap_ins)},
                            .cache = views_,
                            .before = use_,
                            .before_end = before != nullptr ? before->end : nullptr});
}

// Steps of generated tokens alone, as many rows of each sequence, all of them sampled: their launches depend on few
// numbers.
bool CudaBackend::replayable(const StepShape& s) const {
  return options_.graphs && s.rows > 0 && s.rows == s.decodes * s.most_rows && s.segments == s.decodes &&
         s.logit_rows == s.rows && s.slot_copies == 0 && s.history_updates == 0 && s.past_updates == 0;
}

// Null: kernels are launched one by one.
cudaGraphExec_t CudaBackend::graph_of(const GraphSize& size) {
  if (!context_.status.ok()) return nullptr;
  return graphs_.find_or_capture(context_.stream, size, [this](const GraphSize& s) { return capture(s); });
}

// By the graph of such a step, or kernel by kernel if there is none.
void CudaBackend::run(const StepShape& padded, const StepShape& actual) {
  const GraphSize size = size_of(padded);
  const cudaGraphExec_t graph = replayable(actual) ? graph_of(size) : nullptr;
  if (graph == nullptr) {
    compute(padded, *workspace_);
    return log_.computed(padded.rows > padded.decode_rows);
  }
  log_.replayed(size, [&] { compute(actual, *workspace_, true); });
  context_.keep(cuda::check(cudaGraphLaunch(graph, context_.stream), "replaying a step"));
}

Status CudaBackend::capture(const GraphSize& size) {
  QUIRE_CHECKED(launch(shape_of(size, layout_.capacity())));
  log_.captured(size);
  return {};
}

// For captures: an error is what an operator or a launch said.
Status CudaBackend::launch(const StepShape& shape) {
  compute(shape, *workspace_);
  return std::exchange(context_.status, Status{});
}

void CudaBackend::compute(const StepShape& shape, Workspace& workspace, bool only_chooses) {
  context_.weights.begin_step(context_.dry);
  context_.states_at_rest = shape.slot_copies == 0;
  const OpContext ctx{.pool = pool_,
                      .workspace = workspace,
                      .machine = machine_,
                      .choice = &options_.kernels,
                      .forced = context_.dry || only_chooses ? nullptr : &forced_,
                      .launches = context_.dry ? nullptr : log_.observer(),
                      .only_chooses = only_chooses,
                      .gpu = &context_};
  auto* const sampled = reinterpret_cast<int32_t*>(sampled_.data());
  const StepCapacity& c = layout_.capacity();
  compute_step(
      ctx, {weights_->decoder(), weights_->mtp()}, layout_.batch(step_.data(), shape, sampled),
      layout_.drafts(step_.data(), shape, sampled, result_layout_.outputs(results_.data(), shape.logit_rows).tokens),
      {},
      {.cache = views_,
       .kept = make_tensor(kept_.data(), DType::kF32, {c.kept(), c.width}),
       .history = token_history_,
       .suppressed = {reinterpret_cast<const int32_t*>(suppressed_.data()), static_cast<size_t>(suppressed_count_)},
       .out = result_layout_.outputs(results_.data(), shape.logit_rows),
       .scored = result_layout_.scored(results_.data(), shape.scored_rows),
       .hidden = result_layout_.hidden(results_.data(), shape.hidden_rows)});
}

Result<StepResults> CudaBackend::wait(int buffer) {
  use_gpu();
  Buffer& b = buffers_[buffer];
  if (!b.status.ok()) return failed(b, b.status.error());
  if (Status s = cuda::check(cudaEventSynchronize(b.end), "the GPU computing a step"); !s.ok())
    return failed(b, s.error());
  float ms = 0;
  if (Status s = cuda::check(cudaEventElapsedTime(&ms, b.begin, b.end), "timing a step"); !s.ok())
    return failed(b, s.error());
  StepResults done;
  done.out = result_layout_.outputs(b.results.data(), b.shape.logit_rows);
  done.hidden = result_layout_.hidden(b.results.data(), b.shape.hidden_rows);
  done.scored = result_layout_.scored(b.results.data(), b.shape.scored_rows);
  done.drafts = result_layout_.drafts(b.results.data());
  done.seconds = static_cast<double>(ms) * 1e-3;
  return done;
}

// Whether the device still computes. What the driver refused before anything ran (a launch's shape, a missing resource)
// leaves it sound. What a kernel did (an illegal address, a trap, an uncorrectable memory error) is told by every later
// call, and stays until the process ends. So the device is asked, and no table of codes.
Error CudaBackend::failed(const Buffer& b, Error error) {
  const bool sound = cudaStreamSynchronize(context_.stream) == cudaSuccess;
  lost_ |= !sound || !b.ready;
  return error;
}

Status CudaBackend::read_blocks(std::span<const BlockId> blocks, std::span<std::byte> to) {
  std::vector<const std::byte*> from;
  for (const BlockId b : blocks) from.push_back(caches_.data() + b.v * *views_.shape().block_bytes());
  use_gpu();
  return file_copies_.out(context_.stream, to, from);
}

Status CudaBackend::read_state(StateSlot slot, std::span<std::byte> to) {
  const auto* const from = reinterpret_cast<const std::byte*>(views_.slots().row<float>(slot.v));
  use_gpu();
  return file_copies_.out(context_.stream, to, {&from, 1});
}

Status CudaBackend::write_blocks(std::span<const BlockId> blocks, std::span<const std::byte> from) {
  std::vector<std::byte*> to;
  for (const BlockId b : blocks) to.push_back(caches_.data() + b.v * *views_.shape().block_bytes());
  use_gpu();
  return file_copies_.in(context_.stream, to, from);
}

Status CudaBackend::write_state(StateSlot slot, std::span<const std::byte> from) {
  auto* const to = reinterpret_cast<std::byte*>(views_.slots().row<float>(slot.v));
  use_gpu();
  return file_copies_.in(context_.stream, {&to, 1}, from);
}

BackendMemory CudaBackend::memory() const {
  return {.repacked = weights_->bytes(), .kv_and_state = caches_.bytes(), .workspace = scratch_.bytes()};
}

}  // namespace

Result<std::unique_ptr<Backend>> make_cuda_backend(const std::shared_ptr<const LoadedModel>& model,
                                                   const EngineOptions& options) {
  auto b = std::make_unique<CudaBackend>(model, options);
  QUIRE_CHECKED(b->create());
  return std::unique_ptr<Backend>(std::move(b));
}

}  // namespace quire
