// The engine's backend over one ComputeDevice, or over several of which each has some of the layers (stages): which
// memory a step needs, what is copied when, and what comes back.
//
// Stages: every one has the step's arrays, which are copied to each of them, and block numbers and slots mean the same
// on all, so the host plans once. Rows go from stage to stage through a link, and what the last one samples goes back
// to the first. All of that is enqueued when a step is submitted, so a stage begins with the next step while those
// behind it still compute this one, unless it needs a token that they have yet to sample.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "engine/backend.h"
#include "engine/device_link.h"
#include "engine/step_stage.h"

namespace quire {

class StepBackend : public Backend {
 public:
  // Everything is allocated here; what does not fit is said with numbers. One device for each of the plan's stages, in
  // their order.
  static Result<std::unique_ptr<StepBackend>> create(const std::shared_ptr<const LoadedModel>& model,
                                                     const EnginePlan& plan,
                                                     std::vector<std::unique_ptr<ComputeDevice>> devices);
  static Result<std::unique_ptr<StepBackend>> create(const std::shared_ptr<const LoadedModel>& model,
                                                     const EnginePlan& plan, std::unique_ptr<ComputeDevice> device);
  // What steps by such a plan, of a stage perhaps, take on its device beside weights and caches: counted, not
  // allocated.
  static Result<int64_t> step_bytes(const std::shared_ptr<const LoadedModel>& model, const EnginePlan& plan,
                                    std::unique_ptr<ComputeDevice> device);
  ~StepBackend() override;

  const StepLayout& layout() const override { return layout_; }
  const CachePools& pools() const override { return pools_; }
  const PoolCounts& units() const override { return counts_; }
  HostPages host_pages() const override { return host_pages_; }
  std::byte* staging(int buffer) override { return buffers_[buffer].staging.data(); }
  void submit(int buffer, const StepShape& shape, const EncoderSlice& encode) override;
  bool masks_written(int buffer) override;
  Result<Tensor> await_drafts(int buffer) override;
  Result<StepResults> wait(int buffer) override;
  bool lost() const override { return lost_; }
  bool likes_even_rows() const override { return first().device().replays(); }
  Status read(int pool, std::span<const int32_t> units, std::span<std::byte> to) override;
  Status write(int pool, std::span<const int32_t> units, std::span<const std::byte> from) override;
  BackendMemory memory() const override;
  std::string numerics() const override;
  std::vector<ForcedCount> forced() const override;

  // For tests, of the first stage.
  Result<int64_t> scratch_of(const StepShape& shape, std::span<const Segment> segments) {
    return first().scratch_of(shape, segments);
  }
  int64_t largest_scratch() const { return first().largest_scratch(); }
  ComputeDevice& device() { return first().device(); }

 private:
  struct Buffer {
    int index = 0;
    DeviceMemory staging, results;  // the host's
    StepShape shape, padded;
    EncoderSlice encode;
    bool ready = false;  // what comes before the pass was enqueued on every device
    Status status;
  };
  // The step that has sampled a batch slot's newest token, by when it was submitted.
  struct Sampled {
    int64_t step = 0;
    int buffer = -1;
  };
  StepBackend(std::shared_ptr<const LoadedModel> model, const EnginePlan& plan,
              std::vector<std::unique_ptr<ComputeDevice>> devices);
  Status allocate();
  Status link_stages();
  Status allocate_caches();
  bool several() const { return stages_.size() > 1; }
  StepStage& first() const { return *stages_.front(); }
  StepStage& last() const { return *stages_.back(); }
  void check(const Buffer& b) const;
  void bring(StepStage& stage, Buffer& b);
  void begin_last(Buffer& b);
  void send_tokens(const Buffer& b);
  void take_tokens(const Buffer& b);
  void note_sampled(const Buffer& b);
  void enqueue(size_t stage, Buffer& b, bool begun);
  void copy_drafts(const Buffer& b);
  void finish(Buffer& b);
  void note_status(Buffer& b);
  Error failed(const Buffer& b, Error error);
  template <class Byte, class F>
  Status each_piece(int pool, std::span<const int32_t> units, std::span<Byte> all, F&& f) const;

  std::shared_ptr<const LoadedModel> model_;
  EnginePlan plan_;
  StepLayout layout_;
  ResultLayout result_layout_;
  std::vector<std::unique_ptr<StepStage>> stages_;
  std::vector<DeviceLink> rows_;      // from each stage to the next one
  std::optional<DeviceLink> tokens_;  // from the last stage to the first
  CachePools pools_;
  PoolCounts counts_;
  HostPages host_pages_;
  bool lost_ = false;
  Buffer buffers_[kMostDepth];
  std::vector<int> order_;        // buffers of the steps under way, the oldest first
  std::vector<Sampled> sampled_;  // of each batch slot
  int64_t submitted_ = 0;
};

}  // namespace quire
