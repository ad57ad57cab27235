// The CPU as a device: the fast kernels or the references. A thread of its own carries out what is enqueued, so that
// the next step is planned meanwhile.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <variant>

#include "engine/compute_device.h"
#include "ops/gemm/repack.h"

namespace quire {

class CpuDevice : public ComputeDevice {
 public:
  CpuDevice(std::shared_ptr<const LoadedModel> model, const EnginePlan& plan);
  ~CpuDevice() override;

  Machine machine() const override { return {plan_.device}; }
  bool is_host() const override { return true; }
  Result<DeviceMemory> allocate(Where where, int64_t bytes, std::string_view what) override;
  int64_t resident_bytes(const DeviceMemory& memory) const override;
  Status place(int64_t beside) override;
  StepDecoders decoders() const override;
  const VisionTower* tower() const override { return model_->vision ? model_->vision->tower.get() : nullptr; }
  int64_t weight_bytes() const override { return repacked_ ? repacked_->bytes() : 0; }
  ForwardOptions forward_options(bool dry) const override;
  Result<int64_t> measure(const StepShape& shape) override;
  Result<int64_t> measure(const Call& work) override;
  Status check_scratch(const StepCapacity& capacity, int64_t bytes) const override;
  void set_scratch(std::span<std::byte> memory) override { workspace_ = Workspace::over(memory); }
  std::string start(const StepCapacity& capacity) override;
  void copy(std::byte* to, const std::byte* from, int64_t bytes, std::string_view what) override;
  void move(std::span<const DeviceMove> moves, std::optional<Fence> before) override;
  void run(const StepShape& shape, const StepShape& padded, StepPart part) override;
  void call(const Call& work) override { enqueue(&work); }
  void mark(Fence fence) override;
  void wait_for(ComputeDevice& other, Fence fence) override;
  bool reaches(ComputeDevice&) override { return false; }  // all of it is the host's
  Status wait(Fence fence, std::string_view what) override;
  Result<double> seconds(Fence begin, Fence end) override;
  bool idle() override;
  Status read(std::span<std::byte> to, std::span<const std::byte* const> from) override;
  Status write(std::span<std::byte* const> to, std::span<const std::byte> from) override;
  void stop() override;
  std::vector<ForcedCount> forced() const override;

 protected:
  // Around everything that touches memory of kind kOwn and kScratch; for tests that take it away in between.
  virtual void enter() {}
  virtual void leave() {}

 private:
  struct Copy {
    std::byte* to;
    const std::byte* from;
    int64_t bytes;
  };
  struct Run {
    StepShape shape;
    StepPart part;
  };
  using Moves = std::span<const DeviceMove>;
  // Until another device has passed a fence so many times.
  struct Wait {
    CpuDevice* other;
    Fence fence;
    int64_t times;
  };
  using Work = std::variant<Copy, Moves, Run, Fence, Wait, const Call*>;
  // How often a fence was enqueued and passed, and when it last was.
  struct Mark {
    int64_t enqueued = 0, passed = 0;
    std::chrono::steady_clock::time_point at;
  };
  OpContext context(Workspace& workspace);
  int64_t times_marked(Fence fence) const;
  void await(Fence fence, int64_t times);
  void enqueue(Work work);
  void carry_out(const Work& work);
  void work();

  const std::shared_ptr<const LoadedModel> model_;
  const EnginePlan plan_;
  ForcedCounts forced_;
  ThreadPool pool_;
  std::shared_ptr<const RepackedWeights> repacked_;  // may be null
  std::optional<Decoder> placed_;                    // the plan's layers, with those copies if there are any
  std::optional<Decoder> mtp_;                       // the block for multi-token prediction, if it drafts
  std::optional<Workspace> workspace_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // A ring: what the steps in flight are made of is less.
  std::array<Work, 512> queue_;
  size_t first_ = 0, queued_ = 0;  // the first one is being carried out
  std::array<Mark, kFences> marks_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace quire
