// A GPU as a device: what is enqueued goes into a stream; steps that come again and again are replayed as graphs.
// Internal: cuda_device.h makes one.
#pragma once

#include <optional>

#include "core/cuda/device.h"
#include "core/cuda/memory.h"
#include "engine/compute_device.h"
#include "engine/cuda_device.h"
#include "engine/cuda_graphs.h"
#include "engine/cuda_moves.h"
#include "engine/cuda_weights.h"
#include "engine/gpu_step_log.h"
#include "ops/cuda/context.h"

namespace quire {

class CudaDevice final : public ComputeDevice {
 public:
  CudaDevice(std::shared_ptr<const LoadedModel> model, const EnginePlan& plan)
      : model_(std::move(model)),
        plan_(plan),
        forced_(plan.kernels),
        pool_(1),
        log_(plan.launches, cuda::launched_kernels) {}
  ~CudaDevice() override;
  // Makes the GPU of the plan the calling thread's.
  Status create();

  Machine machine() const override { return machine_; }
  bool is_host() const override { return false; }
  Result<DeviceMemory> allocate(Where where, int64_t bytes, std::string_view what) override;
  Status place(int64_t beside) override;
  StepDecoders decoders() const override { return {weights_->decoder(), weights_->mtp()}; }
  const VisionTower* tower() const override { return tower_ != nullptr ? &tower_->tower() : nullptr; }
  int64_t weight_bytes() const override { return weights_->bytes() + (tower_ != nullptr ? tower_->bytes() : 0); }
  ForwardOptions forward_options(bool) const override { return {.prompts = token_rounding(plan_.activations)}; }
  Result<int64_t> measure(const StepShape& shape) override;
  Result<int64_t> measure(const Call& work) override;
  void set_scratch(std::span<std::byte> memory) override { workspace_ = Workspace::over(memory); }
  int64_t overhead_bytes(const StepCapacity& capacity) const override;
  Status rehearse(std::span<const StepShape> steps) override;
  Result<DeviceRoom> room(const StepCapacity& capacity) override;
  std::string start(const StepCapacity& capacity) override;
  void copy(std::byte* to, const std::byte* from, int64_t bytes, std::string_view what) override;
  void move(std::span<const DeviceMove> moves, std::optional<Fence> before) override;
  void run(const StepShape& shape, const StepShape& padded, StepPart part) override;
  void call(const Call& work) override;
  void mark(Fence fence) override;
  void wait_for(ComputeDevice& other, Fence fence) override;
  bool reaches(ComputeDevice& other) override;
  bool replays() const override { return plan_.graphs; }
  Status enqueued() override { return std::exchange(context_.status, Status{}); }
  Status wait(Fence fence, std::string_view what) override;
  Result<double> seconds(Fence begin, Fence end) override;
  bool idle() override;
  bool is_sound() override;
  void stop() override;
  Status read(std::span<std::byte> to, std::span<const std::byte* const> from) override;
  Status write(std::span<std::byte* const> to, std::span<const std::byte> from) override;
  // Of steps that are replayed, when they were captured.
  std::vector<ForcedCount> forced() const override { return {forced_.all().begin(), forced_.all().end()}; }

 private:
  // CUDA's calls are for a thread's current device.
  void use_gpu() const { (void)cudaSetDevice(plan_.gpu); }
  void keep(cudaError_t code, std::string_view what) { context_.keep(cuda::check(code, what)); }
  cudaGraphExec_t graph_of(const GraphSize& size);
  Status capture(const GraphSize& size);
  Status launch(const StepShape& shape, StepPart part = StepPart::kAll);
  void enqueue(const StepShape& shape, Workspace& workspace, StepPart part, bool only_chooses = false);
  void enqueue(const Call& work, Workspace& workspace, bool only_chooses = false);

  std::shared_ptr<const LoadedModel> model_;
  EnginePlan plan_;
  Machine machine_;
  ForcedCounts forced_;
  ThreadPool pool_;  // operators expect one
  std::shared_ptr<const CudaWeights> weights_;
  std::shared_ptr<const CudaTower> tower_;  // null: no images are taken
  cuda::Context context_;
  std::optional<Workspace> workspace_;
  StepCapacity capacity_;      // of steps that are replayed
  int64_t graph_kernels_ = 0;  // of a captured step
  cudaEvent_t fences_[kFences] = {};
  CudaMoves moves_;
  CudaFileCopies file_copies_;
  CudaGraphs graphs_;
  GpuStepLog log_;
};

}  // namespace quire
