// The engine's backend over a ComputeDevice: which memory a step needs, what is copied when, and what comes back.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "engine/backend.h"
#include "engine/compute_device.h"
#include "engine/step_use.h"

namespace quire {

class StepBackend : public Backend {
 public:
  // Everything is allocated here; what does not fit is said with numbers.
  static Result<std::unique_ptr<StepBackend>> create(const std::shared_ptr<const LoadedModel>& model,
                                                     const EnginePlan& plan, std::unique_ptr<ComputeDevice> device);
  // What steps by such a plan take on a device beside weights and caches: counted, not allocated.
  static Result<int64_t> step_bytes(const std::shared_ptr<const LoadedModel>& model, const EnginePlan& plan,
                                    std::unique_ptr<ComputeDevice> device);
  ~StepBackend() override;

  const StepLayout& layout() const override { return layout_; }
  const CachePools& pools() const override { return views_.pools(); }
  const PoolCounts& units() const override { return counts_; }
  HostPages host_pages() const override { return host_pages_; }
  std::byte* staging(int buffer) override { return buffers_[buffer].staging.data(); }
  void submit(int buffer, const StepShape& shape, const EncoderSlice& encode) override;
  bool masks_written(int buffer) override;
  Result<Tensor> await_drafts(int buffer) override;
  Result<StepResults> wait(int buffer) override;
  bool lost() const override { return lost_; }
  bool likes_even_rows() const override { return device_->replays(); }
  Status read(int pool, std::span<const int32_t> units, std::span<std::byte> to) override;
  Status write(int pool, std::span<const int32_t> units, std::span<const std::byte> from) override;
  BackendMemory memory() const override;
  std::string numerics() const override { return numerics_of(device_->machine(), plan_.kernels); }
  std::vector<ForcedCount> forced() const override { return device_->forced(); }

  // For tests. How much scratch memory a step of this shape takes, while none is under way; and what was reserved.
  Result<int64_t> scratch_of(const StepShape& shape, std::span<const Segment> segments);
  int64_t largest_scratch() const { return largest_scratch_; }
  ComputeDevice& device() { return *device_; }

 private:
  struct Buffer {
    DeviceMemory staging, results;  // the host's
    StepShape shape, padded;
    std::vector<DeviceMove> moves;
    EncoderSlice encode;
    ComputeDevice::Call call;  // computes that
    bool ready = false;        // what comes before the pass was enqueued
    Status status;
    // Of this buffer's step: where it begins, where its drafts are there, where it ends.
    ComputeDevice::Fence begin = 0, drafted = 0, end = 0;
  };

  StepBackend(std::shared_ptr<const LoadedModel> model, const EnginePlan& plan, std::unique_ptr<ComputeDevice> device);
  Status allocate();
  Status allocate_fixed();
  int64_t fixed_bytes() const;
  Status allocate_caches();
  Result<PoolCounts> counts_within(const DeviceRoom& room, const CachePools& pools) const;
  CacheViews views_of_one(std::byte* base) const;
  Result<int64_t> measure();
  std::vector<StepShape> rehearsed() const;
  void compute(const OpContext& ctx, const StepShape& shape, StepPart part);
  void enqueue_pass(Buffer& b);
  void copy_drafts(const Buffer& b);
  void copy_results(const Buffer& b);
  void move(Buffer& b);
  void enqueue_encoder(Buffer& b);
  void encode(const OpContext& ctx, const VisionSlice& blocks, const VisionArrays& arrays, int64_t first_row);
  Result<int64_t> encoder_scratch();
  void note_status(Buffer& b);
  Error failed(const Buffer& b, Error error);
  std::byte* unit(int pool, int32_t number) const;
  size_t unit_bytes(int pool) const;

  std::shared_ptr<const LoadedModel> model_;
  EnginePlan plan_;
  std::unique_ptr<ComputeDevice> device_;
  StepLayout layout_;
  ResultLayout result_layout_;
  DeviceMemory step_, results_, sampled_, history_, kept_, suppressed_, scratch_, caches_, encoder_;
  EncoderMemory encoder_memory_;  // where what lies in encoder_
  DeviceMemory host_;             // what was moved to the host
  HostPages host_pages_;
  PoolCounts counts_;
  CacheViews views_;
  TokenHistory token_history_;
  int32_t suppressed_count_ = 0;
  int64_t largest_scratch_ = 0;
  bool lost_ = false;
  Buffer buffers_[kMostDepth];
  const Buffer* last_ = nullptr;  // submitted before: perhaps still under way
  StepUse use_;                   // of the last one
};

}  // namespace quire
