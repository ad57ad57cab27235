#include "engine/cuda_backend.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <map>
#include <optional>

#include "core/cuda/device.h"
#include "core/cuda/memory.h"
#include "core/log.h"
#include "engine/compute_step.h"
#include "engine/cuda_moves.h"
#include "engine/cuda_weights.h"
#include "ops/cuda/context.h"
#include "ops/sampling/history.h"

namespace quire {
namespace {

using cuda::Memory;

double gib(int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 30);
}

Status check_device() {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code != cudaSuccess || count == 0)
    return request_error("no NVIDIA GPU can be used ({}); use --device cpu, which is the default",
                         code == cudaSuccess ? "there is none" : cudaGetErrorString(code));
  QUIRE_CHECKED(cuda::check(cudaSetDevice(0), "choosing the GPU"));
  const auto limits = cuda::device_limits();
  return limits.ok() ? Status() : limits.error();
}

// What the kernels are written for.
Status check_model(const ModelConfig& c) {
  if (c.head_dim != 64 && c.head_dim != 128 && c.head_dim != 256)
    return request_error("attention heads of {}: on a GPU there are kernels for 64, 128 and 256", c.head_dim);
  if (c.hybrid && (c.delta.key_dim != 128 || c.delta.value_dim != 128 || c.delta.conv_kernel != 4))
    return request_error(
        "delta-net heads of {} and {} with {} taps: on a GPU there are kernels for 128 and 4 taps",
        c.delta.key_dim, c.delta.value_dim, c.delta.conv_kernel);
  if (c.d_model % 8 != 0 || c.d_ff % 8 != 0 || c.d_ff_expert % 8 != 0 || c.d_ff_shared % 8 != 0)
    return request_error("on a GPU widths must be multiples of 8: d_model is {}, d_ff {}, {} and {}",
                         c.d_model, c.d_ff, c.d_ff_expert, c.d_ff_shared);
  return {};
}

class CudaBackend final : public Backend {
 public:
  CudaBackend(std::shared_ptr<const LoadedModel> model, const EngineOptions& options)
      : model_(std::move(model)),
        options_(options),
        pool_(1),
        layout_(options.step_capacity(model_->model->config())),
        result_layout_(layout_.capacity()) {}
  ~CudaBackend() override;
  Status create();

  const StepLayout& layout() const override { return layout_; }
  int32_t blocks() const override { return blocks_; }
  int32_t slots() const override { return slots_; }
  const CacheShape& cache_shape() const override { return views_.shape(); }
  HostPages host_pages() const override { return host_pages_; }
  std::byte* staging(int buffer) override { return buffers_[buffer].staging.data(); }
  void submit(int buffer, const StepShape& shape) override;
  Result<StepResults> wait(int buffer) override;
  Status read_blocks(std::span<const BlockId> blocks, std::span<std::byte> to) override;
  Status read_state(StateSlot slot, std::span<std::byte> to) override;
  Status write_blocks(std::span<const BlockId> blocks, std::span<const std::byte> from) override;
  Status write_state(StateSlot slot, std::span<const std::byte> from) override;
  BackendMemory memory() const override;
  // Tensor cores of another generation may add in another order.
  std::string numerics() const override {
    return fmt::format("cuda sm_{}{}{}", limits_.major, limits_.minor, limits_.wgmma ? "" : " mma.sync");
  }
  std::vector<ForcedCount> forced() const override { return {}; }

 private:
  struct Buffer {
    Memory staging, results;  // pinned
    cudaEvent_t begin = nullptr, end = nullptr;
    StepShape shape;
    Status status;
  };
  Status create_buffers();
  Status create_fixed();
  Status create_caches();
  int64_t measure();
  // Copies between the host and the caches, on the stream and waited for. The host's side is pageable.
  Status copy_out(std::span<std::byte> to, std::span<const std::byte* const> from);
  Status copy_in(std::span<std::byte* const> to, std::span<const std::byte> from);
  Status bounce_for(size_t bytes);
  void enqueue(Buffer& b);
  void move(const Buffer& b);
  bool replayable(const StepShape& s) const;
  StepShape pad(Buffer& b) const;
  void replay(const StepShape& padded);
  void compute(const StepBatch& batch, Workspace& workspace);
  StepBatch batch(const StepShape& shape) const {
    return layout_.batch(step_.data(), shape, reinterpret_cast<int32_t*>(sampled_.data()));
  }

  std::shared_ptr<const LoadedModel> model_;
  EngineOptions options_;
  cuda::DeviceLimits limits_;
  ThreadPool pool_;  // operators expect one
  std::shared_ptr<const CudaWeights> weights_;
  StepLayout layout_;
  ResultLayout result_layout_;
  cuda::Context context_;
  Memory step_, results_, sampled_, history_, suppressed_, scratch_, caches_;
  Memory bounce_;  // pinned: between the caches and a file; made when there is one
  std::optional<Workspace> workspace_;
  TokenHistory token_history_;
  CacheViews views_;
  HostPages host_pages_;
  int32_t blocks_ = 0, slots_ = 0, suppressed_count_ = 0;
  Buffer buffers_[kMostDepth];
  const Buffer* last_ = nullptr;  // submitted before: perhaps still under way
  StepUse use_;                   // of the last one
  CudaMoves moves_;
  std::map<std::pair<int32_t, int32_t>, cudaGraphExec_t> graphs_;  // by rows and width of the block tables
};

CudaBackend::~CudaBackend() {
  if (context_.stream != nullptr) cudaStreamSynchronize(context_.stream);
  for (const auto& [key, graph] : graphs_) cudaGraphExecDestroy(graph);
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
  QUIRE_CHECKED(choose_gpu(model_->model->config()));
  QUIRE_TRY(limits_, cuda::device_limits());
  if (!options_.kernels.forced.empty())
    return request_error("--kernel chooses among kernels of the CPU only");
  if (options_.probe)
    return request_error("intermediates can be dumped with --device cpu and reference only");
  if (options_.kv_cache == KvCacheType::kFp8 && !limits_.wgmma)
    return request_error("--kv-cache-dtype fp8: on a GPU there are kernels for compute capability 9.0 only");
  QUIRE_CHECKED(context_.create());
  const double device = seconds();
  QUIRE_TRY(weights_, model_->on_gpu(options_.threads));
  const double weights = seconds();
  QUIRE_CHECKED(create_buffers());
  QUIRE_CHECKED(create_fixed());
  const double fixed = seconds();
  QUIRE_CHECKED(create_caches());
  log_info(fmt::format(
      "cuda: GPU {:.2f} s, weights {:.2f} s ({:.1f} GiB), arrays and scratch {:.2f} s, caches {:.2f} s",
      device, weights, gib(weights_->bytes()), fixed, seconds()));
  return {};
}

Status CudaBackend::create_buffers() {
  for (Buffer& b : buffers_) {
    QUIRE_TRY(b.staging, Memory::create(Memory::Where::kPinned, layout_.bytes(), "the arrays of a step"));
    QUIRE_TRY(b.results,
              Memory::create(Memory::Where::kPinned, result_layout_.bytes(), "the results of a step"));
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
  QUIRE_TRY(sampled_, device(c.places * int64_t{4}, "sampled tokens"));
  QUIRE_TRY(history_, device(token_history_bytes(c.places, vocab, seen), "the history of penalties"));
  token_history_ = lay_out_token_history(history_.data(), c.places, vocab, seen);
  for (const Memory* m : {&step_, &sampled_, &history_})
    QUIRE_CHECKED(cuda::check(cudaMemset(m->data(), 0, static_cast<size_t>(m->bytes())), "clearing memory"));
  std::span<const TokenId> suppressed;
  if (model_->tokenizer) suppressed = model_->tokenizer->suppress_tokens();
  suppressed_count_ = static_cast<int32_t>(suppressed.size());
  QUIRE_TRY(suppressed_, device(static_cast<int64_t>(suppressed.size_bytes()), "suppressed tokens"));
  if (suppressed_count_ > 0)
    QUIRE_CHECKED(cuda::check(
        cudaMemcpy(suppressed_.data(), suppressed.data(), suppressed.size_bytes(), cudaMemcpyHostToDevice),
        "suppressed tokens"));
  QUIRE_TRY(scratch_, device(measure(), "activations and scratch"));
  workspace_ = Workspace::over(scratch_.span());
  return {};
}

// KV blocks and state slots from what the others leave of the cap.
Status CudaBackend::create_caches() {
  const CacheShape shape = model_->model->cache_shape(Device::kCuda, options_.kv_cache);
  const std::optional<int64_t> block = shape.block_bytes(), slot = shape.state_bytes();
  size_t free = 0, total = 0;
  QUIRE_CHECKED(cuda::check(cudaMemGetInfo(&free, &total), "asking for free GPU memory"));
  slots_ = options_.state_slots(model_->model->config());
  const auto used = static_cast<int64_t>(total - free);
  const auto cap = static_cast<int64_t>(static_cast<double>(total) * options_.gpu_memory_utilization);
  // States that are only kept for the prefix cache take at most a quarter of what the caches have.
  if (const int32_t own = std::min(slots_, options_.max_sequences); slot && *slot > 0)
    slots_ = own + static_cast<int32_t>(
                       std::clamp<int64_t>((cap - used - *slot * own) / 4 / *slot, 0, slots_ - own));
  const int64_t left = cap - used - (slot ? *slot * slots_ : 0),
                one = (options_.context + kBlockTokens - 1) / kBlockTokens;
  if (!block || !slot || left < *block * one)
    return capacity_error(
        "{} do not fit the GPU: of {:.1f} GiB, {:.0f}% may be used, {:.1f} GiB are in use with weights "
        "({:.1f} GiB) and "
        "scratch memory ({:.1f} GiB), and one sequence of {} tokens needs {:.2f} GiB beside {} recurrent "
        "states of {:.3f} "
        "GiB; use a shorter --context, fewer sequences, or a higher --gpu-memory-utilization",
        model_->model->config().name.empty() ? "the model and its caches" : model_->model->config().name,
        gib(static_cast<int64_t>(total)), options_.gpu_memory_utilization * 100, gib(used),
        gib(weights_->bytes()), gib(scratch_.bytes()), options_.context, block ? gib(*block * one) : 0.0,
        slots_, slot ? gib(*slot) : 0.0);
  blocks_ =
      static_cast<int32_t>(std::min<int64_t>(options_.kv_blocks(), *block == 0 ? INT32_MAX : left / *block));
  const int64_t bytes = *CacheViews::bytes(shape, blocks_, slots_);
  QUIRE_TRY(caches_, Memory::create(Memory::Where::kDevice, bytes, "KV blocks and recurrent states"));
  QUIRE_CHECKED(
      cuda::check(cudaMemset(caches_.data(), 0, static_cast<size_t>(bytes)), "clearing the caches"));
  views_ = CacheViews(shape, caches_.data(), blocks_, slots_);
  host_pages_ = host_pages_of(options_, *block);
  return moves_.create(host_pages_.all() * *block);
}

// Scratch memory of the largest steps: operators take it from a range of the host's addresses, which nobody touches.
int64_t CudaBackend::measure() {
  const StepCapacity& c = layout_.capacity();
  Workspace all;
  views_ = CacheViews(model_->model->cache_shape(Device::kCuda, options_.kv_cache), nullptr, 1, 1);
  context_.dry = true;
  // All sequences read prompts, or all generate: what operators take grows with the number of either.
  for (const int32_t decodes : {0, c.segments}) {
    StepShape s{.rows = c.rows,
                .decode_rows = decodes,
                .segments = std::max(1, c.segments),
                .decodes = decodes,
                .logit_rows = c.logit_rows,
                .decode_logit_rows = decodes,
                .hidden_rows = c.hidden_rows};
    s.table_width = c.table_width;
    s.decode_keys = int64_t{decodes} * options_.context;
    compute(batch(s), all);
  }
  context_.dry = false;
  return all.high_water() + (int64_t{1} << 20);
}

void CudaBackend::submit(int buffer, const StepShape& shape) {
  Buffer& b = buffers_[buffer];
  check_segments(layout_.batch(b.staging.data(), shape, nullptr).segments, shape.rows, blocks_, slots_);
  check_copies(
      layout_.arrays(b.staging.data()), shape,
      {blocks_, slots_, host_pages_.all(), *views_.shape().block_bytes(), *views_.shape().state_bytes()});
  b.shape = shape;
  enqueue(b);
  b.status = std::exchange(context_.status, Status{});
  last_ = &b;
}

void CudaBackend::enqueue(Buffer& b) {
  const cudaStream_t stream = context_.stream;
  const auto keep = [&](cudaError_t code, std::string_view what) { context_.keep(cuda::check(code, what)); };
  const StepShape padded = replayable(b.shape) ? pad(b) : b.shape;
  keep(cudaEventRecord(b.begin, stream), "recording an event");
  keep(cudaMemcpyAsync(step_.data(), b.staging.data(), static_cast<size_t>(layout_.used_bytes(padded)),
                       cudaMemcpyHostToDevice, stream),
       "copying a step to the GPU");
  move(b);
  if (replayable(b.shape)) {
    replay(padded);
  } else {
    compute(batch(b.shape), *workspace_);
  }
  const StepBatch host = layout_.batch(b.staging.data(), b.shape, nullptr);
  bool tops = false;
  for (int32_t i = 0; i < b.shape.logit_rows; ++i) tops |= host.sample_rows[i].logprobs > 0;
  keep(cudaMemcpyAsync(b.results.data(), results_.data(),
                       static_cast<size_t>(result_layout_.used_bytes(tops)), cudaMemcpyDeviceToHost, stream),
       "copying results from the GPU");
  if (b.shape.hidden_rows > 0) {
    const Tensor hidden = result_layout_.hidden(results_.data(), b.shape.hidden_rows);
    keep(cudaMemcpyAsync(result_layout_.hidden(b.results.data(), 0).data, hidden.data,
                         static_cast<size_t>(hidden.bytes()), cudaMemcpyDeviceToHost, stream),
         "copying hidden states from the GPU");
  }
  keep(cudaEventRecord(b.end, stream), "recording an event");
}

// Outside of captured launches, and behind those of the step before as far as they must be.
void CudaBackend::move(const Buffer& b) {
  if (b.shape.swap_outs == 0 && b.shape.swap_ins == 0) return;
  use_.clear();
  const Buffer* const before = last_ == &b ? nullptr : last_;  // a buffer that is used again was waited for
  if (before != nullptr)
    use_.note(layout_.batch(before->staging.data(), before->shape, nullptr), blocks_, slots_);
  const StepLayout::Arrays a = layout_.arrays(b.staging.data());
  moves_.enqueue(context_, {.outs = {a.swap_outs, static_cast<size_t>(b.shape.swap_outs)},
                            .ins = {a.swap_ins, static_cast<size_t>(b.shape.swap_ins)},
                            .cache = views_,
                            .before = use_,
                            .before_end = before != nullptr ? before->end : nullptr});
}

// Steps of generated tokens alone, one for each sequence, all of them sampled: their launches depend on few numbers.
bool CudaBackend::replayable(const StepShape& s) const {
  return options_.graphs && s.rows > 0 && s.rows == s.decodes && s.segments == s.decodes &&
         s.logit_rows == s.rows && s.block_copies == 0 && s.slot_copies == 0 && s.notes == 0 &&
         s.past_notes == 0;
}

// Rounds the rows of a step up with padding, so that few graphs serve all: by an eighth at most, from 16 rows on.
StepShape CudaBackend::pad(Buffer& b) const {
  StepShape s = b.shape;
  int32_t rows = 1;
  while (rows < s.rows)
    rows +=
        rows < 4 ? rows : std::max(4, static_cast<int32_t>(std::bit_floor(static_cast<uint32_t>(rows))) / 8);
  rows = std::min({rows, layout_.capacity().rows, layout_.capacity().segments});
  const StepLayout::Arrays a = layout_.arrays(b.staging.data());
  for (int32_t i = s.rows; i < rows; ++i) {
    a.tokens[i] = 0;
    a.sources[i] = a.logit_rows[i] = -1;
    a.segments[i] = {};
    a.sample_rows[i] = {.flags = kSampleIdle};
  }
  s.rows = s.decode_rows = s.segments = s.decodes = s.logit_rows = s.decode_logit_rows = rows;
  s.decode_keys = int64_t{rows} * s.table_width * kBlockTokens;
  return s;
}

// Captures the launches of such a step the first time that its shape comes.
void CudaBackend::replay(const StepShape& padded) {
  const cudaStream_t stream = context_.stream;
  const auto keep = [&](cudaError_t code, std::string_view what) {
    context_.keep(cuda::check(code, what));
    return code == cudaSuccess;
  };
  cudaGraphExec_t& graph = graphs_[{padded.rows, padded.table_width}];
  if (graph == nullptr) {
    cudaGraph_t captured = nullptr;
    if (!keep(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capturing a step")) return;
    compute(batch(padded), *workspace_);
    if (!keep(cudaStreamEndCapture(stream, &captured), "capturing a step")) return;
    keep(cudaGraphInstantiate(&graph, captured, 0), "making a graph of a step");
    cudaGraphDestroy(captured);
    if (graph == nullptr) return;
  }
  keep(cudaGraphLaunch(graph, stream), "replaying a step");
}

void CudaBackend::compute(const StepBatch& batch, Workspace& workspace) {
  context_.weights.begin_step(context_.dry);
  context_.states_at_rest = batch.shape.slot_copies == 0;
  const OpContext ctx{.pool = pool_, .workspace = workspace, .machine = {Device::kCuda}, .cuda = &context_};
  compute_step(ctx, weights_->model(), batch, {},
               {.cache = views_,
                .history = token_history_,
                .suppressed = {reinterpret_cast<const int32_t*>(suppressed_.data()),
                               static_cast<size_t>(suppressed_count_)},
                .out = result_layout_.outputs(results_.data(), batch.shape.logit_rows),
                .hidden = result_layout_.hidden(results_.data(), batch.shape.hidden_rows)});
}

Result<StepResults> CudaBackend::wait(int buffer) {
  Buffer& b = buffers_[buffer];
  if (!b.status.ok()) return b.status.error();
  QUIRE_CHECKED(cuda::check(cudaEventSynchronize(b.end), "the GPU computing a step"));
  float ms = 0;
  QUIRE_CHECKED(cuda::check(cudaEventElapsedTime(&ms, b.begin, b.end), "timing a step"));
  StepResults done;
  done.out = result_layout_.outputs(b.results.data(), b.shape.logit_rows);
  done.hidden = result_layout_.hidden(b.results.data(), b.shape.hidden_rows);
  done.seconds = static_cast<double>(ms) * 1e-3;
  return done;
}

// Pinned, so that copies run at the speed of the bus.
Status CudaBackend::bounce_for(size_t bytes) {
  if (bounce_.bytes() >= static_cast<int64_t>(bytes)) return {};
  QUIRE_TRY(bounce_, Memory::create(Memory::Where::kPinned, static_cast<int64_t>(bytes),
                                    "blocks and states on their way to or from a file"));
  return {};
}

Status CudaBackend::copy_out(std::span<std::byte> to, std::span<const std::byte* const> from) {
  if (to.empty()) return {};
  QUIRE_CHECKED(bounce_for(to.size()));
  const size_t each = to.size() / from.size();
  for (size_t i = 0; i < from.size(); ++i)
    QUIRE_CHECKED(cuda::check(
        cudaMemcpyAsync(bounce_.data() + i * each, from[i], each, cudaMemcpyDeviceToHost, context_.stream),
        "reading the caches"));
  QUIRE_CHECKED(cuda::check(cudaStreamSynchronize(context_.stream), "reading the caches"));
  std::copy_n(bounce_.data(), to.size(), to.data());
  return {};
}

Status CudaBackend::copy_in(std::span<std::byte* const> to, std::span<const std::byte> from) {
  if (from.empty()) return {};
  QUIRE_CHECKED(bounce_for(from.size()));
  std::copy_n(from.data(), from.size(), bounce_.data());
  const size_t each = from.size() / to.size();
  for (size_t i = 0; i < to.size(); ++i)
    QUIRE_CHECKED(cuda::check(
        cudaMemcpyAsync(to[i], bounce_.data() + i * each, each, cudaMemcpyHostToDevice, context_.stream),
        "writing the caches"));
  return cuda::check(cudaStreamSynchronize(context_.stream), "writing the caches");
}

Status CudaBackend::read_blocks(std::span<const BlockId> blocks, std::span<std::byte> to) {
  std::vector<const std::byte*> from;
  for (const BlockId b : blocks) from.push_back(caches_.data() + b.v * *views_.shape().block_bytes());
  return copy_out(to, from);
}

Status CudaBackend::read_state(StateSlot slot, std::span<std::byte> to) {
  const auto* const from = reinterpret_cast<const std::byte*>(views_.slots().row<float>(slot.v));
  return copy_out(to, {&from, 1});
}

Status CudaBackend::write_blocks(std::span<const BlockId> blocks, std::span<const std::byte> from) {
  std::vector<std::byte*> to;
  for (const BlockId b : blocks) to.push_back(caches_.data() + b.v * *views_.shape().block_bytes());
  return copy_in(to, from);
}

Status CudaBackend::write_state(StateSlot slot, std::span<const std::byte> from) {
  auto* const to = reinterpret_cast<std::byte*>(views_.slots().row<float>(slot.v));
  return copy_in({&to, 1}, from);
}

BackendMemory CudaBackend::memory() const {
  return {.repacked = weights_->bytes(), .kv_and_state = caches_.bytes(), .workspace = scratch_.bytes()};
}

}  // namespace

Status choose_gpu(const ModelConfig& model) {
  QUIRE_CHECKED(check_device());
  return check_model(model);
}

Result<std::unique_ptr<Backend>> make_cuda_backend(const std::shared_ptr<const LoadedModel>& model,
                                                   const EngineOptions& options) {
  auto b = std::make_unique<CudaBackend>(model, options);
  QUIRE_CHECKED(b->create());
  return std::unique_ptr<Backend>(std::move(b));
}

}  // namespace quire
