// The engine's backend on a GPU. Internal to it: cuda_backend.h makes one.
#pragma once

#include <optional>

#include "core/cuda/device.h"
#include "core/cuda/memory.h"
#include "engine/compute_step.h"
#include "engine/cuda_backend.h"
#include "engine/cuda_graphs.h"
#include "engine/cuda_moves.h"
#include "engine/cuda_weights.h"
#include "engine/gpu_step_log.h"
#include "ops/cuda/context.h"
#include "ops/sampling/history.h"

namespace quire {

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
  // What steps of such options take beside weights and caches, on the calling thread's GPU: counted, not allocated.
  static Result<int64_t> step_bytes(const std::shared_ptr<const LoadedModel>& model,
                                    const std::shared_ptr<const CudaWeights>& weights, const EngineOptions& options);

  const StepLayout& layout() const override { return layout_; }
  int32_t blocks() const override { return blocks_; }
  int32_t slots() const override { return slots_; }
  int32_t window_blocks() const override { return window_blocks_; }
  const CacheShape& cache_shape() const override { return views_.shape(); }
  HostPages host_pages() const override { return host_pages_; }
  std::byte* staging(int buffer) override { return buffers_[buffer].staging.data(); }
  void submit(int buffer, const StepShape& shape) override;
  bool masks_written(int buffer) override;
  Result<Tensor> await_drafts(int buffer) override;
  Result<StepResults> wait(int buffer) override;
  bool lost() const override { return lost_; }
  bool likes_even_rows() const override { return options_.graphs; }
  Status read_blocks(std::span<const BlockId> blocks, std::span<std::byte> to) override;
  Status read_state(StateSlot slot, std::span<std::byte> to) override;
  Status write_blocks(std::span<const BlockId> blocks, std::span<const std::byte> from) override;
  Status write_state(StateSlot slot, std::span<const std::byte> from) override;
  Status read_windows(std::span<const BlockId> blocks, std::span<std::byte> to) override;
  Status write_windows(std::span<const BlockId> blocks, std::span<const std::byte> from) override;
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
    cuda::Memory staging, results;  // pinned
    cudaEvent_t begin = nullptr, drafted = nullptr, end = nullptr;
    StepShape shape, padded;
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
  void keep(cudaError_t code, std::string_view what) { context_.keep(cuda::check(code, what)); }
  void enqueue_pass(Buffer& b);
  void enqueue_sampling(Buffer& b);
  void copy_drafts(const Buffer& b);
  void copy_results(const Buffer& b);
  void move(const Buffer& b);
  bool replayable(const StepShape& s) const;
  void run(const Buffer& b, StepPart part);
  cudaGraphExec_t graph_of(const GraphSize& size);
  Status capture(const GraphSize& size);
  Status launch(const StepShape& shape, StepPart part = StepPart::kAll);
  void compute(const StepShape& shape, Workspace& workspace, StepPart part = StepPart::kAll, bool only_chooses = false);

  std::shared_ptr<const LoadedModel> model_;
  EngineOptions options_;
  Machine machine_;
  ForcedCounts forced_;
  ThreadPool pool_;  // operators expect one
  std::shared_ptr<const CudaWeights> weights_;
  StepLayout layout_;
  ResultLayout result_layout_;
  cuda::Context context_;
  cuda::Memory step_, results_, sampled_, history_, kept_, suppressed_, scratch_, caches_;
  std::optional<Workspace> workspace_;
  TokenHistory token_history_;
  CacheViews views_;
  HostPages host_pages_;
  int32_t blocks_ = 0, slots_ = 0, window_blocks_ = 0, suppressed_count_ = 0;
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

}  // namespace quire
