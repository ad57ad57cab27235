#include "engine/cuda_backend.h"

#include <algorithm>
#include <chrono>

#include "core/log.h"
#include "engine/cuda_backend_impl.h"
#include "engine/memory_plan.h"

namespace quire {
namespace {

double gib(int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 30);
}

}  // namespace

using cuda::Memory;

CudaBackend::~CudaBackend() {
  use_gpu();
  if (context_.stream != nullptr) cudaStreamSynchronize(context_.stream);
  for (Buffer& b : buffers_) {
    if (b.begin != nullptr) cudaEventDestroy(b.begin);
    if (b.drafted != nullptr) cudaEventDestroy(b.drafted);
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
      "cuda: GPU {:.2f} s, arrays and scratch {:.2f} s ({:.2f} GiB), caches {:.2f} s ({:.2f} GiB), {} graphs of up "
      "to {} kernels {:.2f} s",
      device, fixed, gib(scratch_.bytes()), caches, gib(caches_.bytes()), graphs_.count(), graph_kernels_, seconds()));
  return {};
}

Status CudaBackend::create_buffers() {
  for (Buffer& b : buffers_) {
    QUIRE_TRY(b.staging, Memory::create(Memory::Where::kPinned, layout_.bytes(), "the arrays of a step"));
    QUIRE_TRY(b.results, Memory::create(Memory::Where::kPinned, result_layout_.bytes(), "the results of a step"));
    QUIRE_CHECKED(cuda::check(cudaEventCreate(&b.begin), "creating an event"));
    QUIRE_CHECKED(cuda::check(cudaEventCreate(&b.drafted), "creating an event"));
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
  views_ = CacheViews(options_.cache_shape(model_->model->config()), scratch_.data(), {1, 1, 1});
  const GraphSize largest = graph_sizes(c).front();
  const StepShape decodes = shape_of(largest, c);
  StepShape prompt{.rows = c.rows, .segments = 1, .logit_rows = 1, .table_width = c.table_width};
  prompt.hidden_rows = c.hidden_rows > 0 ? 1 : 0;
  std::vector<StepShape> steps = {decodes, shape_of({1, largest.width}, c), prompt};
  if (c.segments > 1) {
    StepShape both = prompt;
    both.segments = both.logit_rows = 2;
    both.decode_rows = both.decodes = both.decode_logit_rows = 1;
    both.decode_keys = most_keys(c, largest.width * int64_t{kBlockTokens}, 1);
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
  const std::optional<int64_t> block = shape.block_bytes(), window = shape.window_block_bytes(),
                               slot = shape.state_bytes();
  QUIRE_TRY(const GpuMemory m, gpu_memory(weights_->bytes()));
  const auto cap = static_cast<int64_t>(static_cast<double>(m.total) * options_.gpu_memory_utilization);
  const int64_t graphs = options_.graphs ? std::ssize(graph_sizes(layout_.capacity())) + CudaGraphs::kMostOnDemand : 0;
  const int64_t has = cap - m.used - CudaGraphs::estimated_bytes(graphs, graph_kernels_);
  slots_ = options_.state_slots(model_->model->config());
  const int32_t own = std::min(slots_, options_.max_sequences);
  const int64_t one = (options_.context + kBlockTokens - 1) / kBlockTokens;
  if (block && slot) slots_ = own + saved_states(slots_ - own, has - *slot * own, *slot, *block * one);
  int64_t left = has - (slot ? *slot * slots_ : 0);
  const int64_t wanted = options_.kv_is_bound ? one : options_.kv_blocks();
  const WindowNeeds windows = options_.window_needs(model_->model->config());
  if (block && window)
    window_blocks_ =
        window_pool(windows, options_.max_sequences, options_.prefix_cache ? options_.state_checkpoints : 0, left,
                    *window, *block * wanted);
  if (window && window_blocks_ > 0) left -= (window_blocks_ + 1) * *window;
  if (!block || !window || !slot || left < *block * wanted || window_blocks_ < windows.least())
    return capacity_error(
        "{} do not fit the GPU: of {:.1f} GiB, {:.0f}% may be used, {:.1f} GiB are in use with weights ({:.1f} GiB) "
        "and scratch memory for steps of {} tokens and {} sequences ({:.1f} GiB), and {} tokens of keys and values "
        "need {:.2f} GiB beside {} recurrent states of {:.3f} GiB; use a shorter --context, fewer sequences, smaller "
        "steps, or a higher --gpu-memory-utilization",
        model_->model->config().name.empty() ? "the model and its caches" : model_->model->config().name, gib(m.total),
        options_.gpu_memory_utilization * 100, gib(m.used), gib(weights_->bytes()), options_.max_batch_tokens,
        options_.max_sequences, gib(scratch_.bytes()), wanted * kBlockTokens,
        block && window ? gib(*block * wanted + *window * windows.least()) : 0.0, slots_, slot ? gib(*slot) : 0.0);
  blocks_ = static_cast<int32_t>(std::min<int64_t>(options_.kv_blocks(), *block == 0 ? INT32_MAX : left / *block));
  const CacheCounts counts{
      .blocks = blocks_, .slots = slots_, .window_blocks = window_blocks_ > 0 ? window_blocks_ + 1 : 0};
  const int64_t bytes = *CacheViews::bytes(shape, counts);
  QUIRE_TRY(caches_, Memory::create(Memory::Where::kDevice, bytes, "KV blocks and recurrent states"));
  QUIRE_CHECKED(cuda::check(cudaMemset(caches_.data(), 0, static_cast<size_t>(bytes)), "clearing the caches"));
  views_ = CacheViews(shape, caches_.data(), counts);
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
  views_ = CacheViews(options_.cache_shape(model_->model->config()), nullptr, {1, 1, 1});
  context_.dry = true;
  const auto compute_dry = [&](int32_t decodes, int32_t each) {
    StepShape s{.rows = c.rows,
                .decode_rows = decodes > 0 ? c.logit_rows : 0,
                .segments = std::max(1, c.segments),
                .decodes = decodes,
                .logit_rows = c.logit_rows,
                .decode_logit_rows = decodes > 0 ? c.logit_rows : 0,
                .hidden_rows = c.hidden_rows,
                .scored_rows = c.scored_rows};
    s.most_rows = each;
    s.follows = c.drafts > 0;
    if (decodes > 0) s.draft_passes = c.drafts;
    s.table_width = c.table_width;
    s.decode_keys = most_keys(c, int64_t{decodes} * c.table_width * kBlockTokens, each);
    compute(s, all);
  };
  // All sequences read prompts, or all generate, with any number of drafts: what operators take grows with the number
  // of either, and keys are fewer where each has more rows.
  compute_dry(0, 1);
  for (int32_t each = 1; each <= 1 + options_.most_drafts(); ++each) compute_dry(c.segments, each);
  context_.dry = false;
  QUIRE_CHECKED(std::exchange(context_.status, Status{}));
  return all.high_water() + (int64_t{1} << 20);
}

Result<int64_t> CudaBackend::step_bytes(const std::shared_ptr<const LoadedModel>& model,
                                        const std::shared_ptr<const CudaWeights>& weights,
                                        const EngineOptions& options) {
  // The driver's own: code of kernels as they are loaded, and the nodes of graphs.
  constexpr int64_t kOfDriver = int64_t{192} << 20, kKernelsOfLayer = 24;
  CudaBackend b(model, options);
  QUIRE_TRY(b.machine_, gpu_machine());
  b.weights_ = weights;
  QUIRE_TRY(const int64_t scratch, b.measure());
  const StepCapacity& c = b.layout_.capacity();
  const ModelConfig& config = model->model->config();
  const int64_t graphs = options.graphs ? std::ssize(graph_sizes(c)) + CudaGraphs::kMostOnDemand : 0;
  return scratch + b.layout_.bytes() + b.result_layout_.bytes() + c.sampled() * int64_t{4} +
         int64_t{c.kept()} * c.width * 4 +
         token_history_bytes(c.batch_slots, config.vocab, std::min(config.vocab, options.context)) +
         CudaGraphs::estimated_bytes(graphs, config.layers * kKernelsOfLayer) + kOfDriver;
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

Status CudaBackend::read_windows(std::span<const BlockId> blocks, std::span<std::byte> to) {
  const auto bytes = static_cast<size_t>(*views_.shape().window_block_bytes());
  use_gpu();
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (!blocks[i].valid()) continue;
    const auto* const from = reinterpret_cast<const std::byte*>(views_.window_blocks().row<float>(blocks[i].v));
    QUIRE_CHECKED(file_copies_.out(context_.stream, to.subspan(i * bytes, bytes), {&from, 1}));
  }
  return {};
}

Status CudaBackend::write_windows(std::span<const BlockId> blocks, std::span<const std::byte> from) {
  const auto bytes = static_cast<size_t>(*views_.shape().window_block_bytes());
  use_gpu();
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (!blocks[i].valid()) continue;
    auto* const to = reinterpret_cast<std::byte*>(views_.window_blocks().row<float>(blocks[i].v));
    QUIRE_CHECKED(file_copies_.in(context_.stream, {&to, 1}, from.subspan(i * bytes, bytes)));
  }
  return {};
}

BackendMemory CudaBackend::memory() const {
  return {.repacked = weights_->bytes(), .kv_and_state = caches_.bytes(), .workspace = scratch_.bytes()};
}

Result<std::unique_ptr<Backend>> make_cuda_backend(const std::shared_ptr<const LoadedModel>& model,
                                                   const EngineOptions& options) {
  auto b = std::make_unique<CudaBackend>(model, options);
  QUIRE_CHECKED(b->create());
  return std::unique_ptr<Backend>(std::move(b));
}

}  // namespace quire
