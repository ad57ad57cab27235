// What one device has of every step: the weights of its layers and what they keep in the caches, the step's arrays,
// scratch memory, what is sampled. A backend (step_backend.h) has one that computes whole steps, or several, one behind
// the other: stages.
#pragma once

#include <memory>
#include <vector>

#include "engine/backend.h"
#include "engine/compute_device.h"
#include "engine/step_use.h"

namespace quire {

// One thread calls everything but memory(). Of several stages the first has the embedding and the vision tower; the
// last one has the head, the block for multi-token prediction, and samples.
class StepStage {
 public:
  // Fences of a device in each buffer's step: where it begins, where its drafts are there, where it ends, and where
  // rows, and sampled tokens, are on their way to another device.
  enum Mark { kBegin, kDrafted, kEnd, kRowsSent, kTokensSent, kMarks };
  static ComputeDevice::Fence fence(int buffer, Mark m) { return buffer * kMarks + m; }

  // `plan`: the stage's (EnginePlan::of_stage). `layout`: the backend's, which outlives it.
  StepStage(std::shared_ptr<const LoadedModel> model, const EnginePlan& plan, const StepLayout& layout,
            std::unique_ptr<ComputeDevice> device);
  StepStage(const StepStage&) = delete;
  StepStage& operator=(const StepStage&) = delete;

  // Places the weights and allocates everything but the caches.
  Status prepare();
  // How many units each of its pools can have, once all else is allocated.
  Result<PoolCounts> room();
  // Allocates the caches, with so many units of the model's pools, of which a stage without recurrent layers lacks the
  // last one, and so many pages of the host. Then steps may come.
  Status allocate_caches(PoolCounts units, int32_t host_pages);
  void start();
  // What steps take beside weights and caches: counted, not allocated.
  Result<int64_t> step_bytes();

  // Enqueued, in this order: a step's arrays and moves; `before`: buffers of steps that may be under way.
  void bring(int buffer, const std::byte* staging, const StepShape& shape, const StepShape& padded,
             std::span<const int> before);
  void encode(int buffer, const EncoderSlice& slice);
  void bring_masks(const std::byte* staging, const StepShape& shape);
  void run(const StepShape& shape, const StepShape& padded, StepPart part) { device_->run(shape, padded, part); }
  void mark(int buffer, Mark m) { device_->mark(fence(buffer, m)); }

  bool first() const { return plan_.is_first_stage(); }
  bool last() const { return plan_.is_last_stage(); }
  ComputeDevice& device() const { return *device_; }
  std::byte* results() const { return results_.data(); }
  std::byte* sampled() const { return sampled_.data(); }
  // The rows that it takes from the stage before and leaves to the next one, and how many bytes those of a step are.
  std::byte* stream() const { return stream_.data(); }
  int64_t stream_bytes(int64_t rows) const { return rows * stream_width() * 4; }

  const CachePools& pools() const { return views_.pools(); }
  int64_t page_bytes() const { return page_bytes_; }  // of the host's
  // While nothing is under way: the bytes of a unit of one of its pools, or what a page of on_host(pool) holds.
  Status read(int pool, int32_t unit, std::span<std::byte> to) const;
  Status write(int pool, int32_t unit, std::span<const std::byte> from);

  BackendMemory memory() const;
  // For tests. How much scratch memory a step of this shape takes, while none is under way; and what was reserved.
  Result<int64_t> scratch_of(const StepShape& shape, std::span<const Segment> segments);
  int64_t largest_scratch() const { return largest_scratch_; }

 private:
  struct Buffer {
    std::vector<DeviceMove> moves;
    StepShape shape;
    const std::byte* staging = nullptr;
    EncoderSlice encode;
    ComputeDevice::Call call;  // computes that
  };

  const ModelConfig& config() const { return model_->model->config(); }
  CacheShape cache_shape() const { return plan_.own_cache_shape(config()); }
  int64_t stream_width() const {
    return config().d_model + (config().per_layer.width > 0 ? config().per_layer.all() : 0);
  }
  StreamRows stream_rows(int64_t rows) const;
  int64_t fixed_bytes() const;
  Status allocate_fixed();
  Status allocate_for_sampling();
  Result<PoolCounts> counts_within(const DeviceRoom& room) const;
  CacheViews views_of_one(std::byte* base) const;
  Result<int64_t> measure();
  Result<int64_t> encoder_scratch();
  std::vector<StepShape> rehearsed() const;
  void move(int buffer, std::span<const int> before);
  void compute(const OpContext& ctx, const StepShape& shape, StepPart part);
  void compute_slice(const OpContext& ctx, const VisionSlice& blocks, const VisionArrays& arrays, int64_t first_row);
  std::byte* unit(int pool, int32_t number) const;

  std::shared_ptr<const LoadedModel> model_;
  EnginePlan plan_;
  const StepLayout& layout_;
  std::unique_ptr<ComputeDevice> device_;
  ResultLayout result_layout_;
  int64_t page_bytes_;  // of the host's
  DeviceMemory step_, stream_, results_, sampled_, history_, kept_, suppressed_, scratch_, caches_, encoder_;
  EncoderMemory encoder_memory_;  // where what lies in encoder_
  DeviceMemory host_;             // what was moved to the host
  PoolCounts counts_;
  CacheViews views_;
  TokenHistory token_history_;
  int32_t suppressed_count_ = 0;
  int64_t largest_scratch_ = 0;
  double fixed_seconds_ = 0.0, caches_seconds_ = 0.0;
  Buffer buffers_[kMostDepth];
  StepUse use_;  // of the steps under way
};

}  // namespace quire
