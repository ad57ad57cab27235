// Steps on the CPU: the fast kernels or the references. A thread of its own computes them, so that the next one is
// planned meanwhile.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "cache/storage.h"
#include "engine/backend.h"
#include "ops/gemm/repack.h"

namespace quire {

class CpuBackend : public Backend {
 public:
  // `options` as resolve() gives them. What does not fit into memory is said here, with numbers: afterwards nothing
  // grows.
  static Result<std::unique_ptr<CpuBackend>> create(const std::shared_ptr<const LoadedModel>& model,
                                                    const EngineOptions& options);
  ~CpuBackend() override;

  const StepLayout& layout() const override { return layout_; }
  int32_t blocks() const override { return static_cast<int32_t>(storage_.blocks().dim(0)); }
  int32_t slots() const override { return static_cast<int32_t>(storage_.slots().dim(0)); }
  int32_t window_blocks() const override {
    return std::max(0, static_cast<int32_t>(storage_.window_blocks().dim(0)) - 1);
  }
  const CacheShape& cache_shape() const override { return storage_.shape(); }
  HostPages host_pages() const override { return host_pages_; }
  std::byte* staging(int buffer) override { return buffers_[buffer].staging.data(); }
  void submit(int buffer, const StepShape& shape) override;
  bool masks_written(int buffer) override;
  Result<Tensor> await_drafts(int buffer) override;
  Result<StepResults> wait(int buffer) override;
  bool lost() const override { return false; }
  Status read_blocks(std::span<const BlockId> blocks, std::span<std::byte> to) override;
  Status read_state(StateSlot slot, std::span<std::byte> to) override;
  Status write_blocks(std::span<const BlockId> blocks, std::span<const std::byte> from) override;
  Status write_state(StateSlot slot, std::span<const std::byte> from) override;
  Status read_windows(std::span<const BlockId> blocks, std::span<std::byte> to) override;
  Status write_windows(std::span<const BlockId> blocks, std::span<const std::byte> from) override;
  Status read_pages(std::span<const int32_t> pages, std::span<std::byte> to) override;
  Status write_pages(std::span<const int32_t> pages, std::span<const std::byte> from) override;
  BackendMemory memory() const override;
  std::string numerics() const override;
  std::vector<ForcedCount> forced() const override;

 protected:
  // Memory of zeros that is backed as it is touched.
  class Pages {
   public:
    Pages() = default;
    static Result<Pages> create(int64_t bytes, std::string_view what);
    Pages(Pages&& o) noexcept : bytes_(std::exchange(o.bytes_, {})) {}
    Pages& operator=(Pages&& o) noexcept {
      std::swap(bytes_, o.bytes_);
      return *this;
    }
    ~Pages();
    std::byte* data() const { return bytes_.data(); }
    std::span<std::byte> span() const { return bytes_; }

   private:
    std::span<std::byte> bytes_;
  };

  CpuBackend(std::shared_ptr<const LoadedModel> model, const EngineOptions& options, CacheStorage storage);
  static Result<CacheStorage> create_caches(const Model& model, const EngineOptions& options);
  Status allocate();
  void start();
  // Around everything that touches the backend's own memory; for tests that take it away in between.
  virtual void enter() {}
  virtual void leave() {}
  // How much scratch memory a step of this shape takes, found by a pass that computes nothing. While no step is in
  // flight.
  int64_t scratch_of(const StepShape& shape, std::span<const Segment> segments);
  int64_t largest_scratch() const { return largest_scratch_; }  // of any step, as it was reserved
  // That memory: caches, scratch, arrays of the step, results, histories.
  std::vector<std::span<std::byte>> regions() const;
  void stop();

 private:
  enum class Stage { kIdle, kSubmitted, kDone };
  struct Buffer {
    Pages staging, results;  // the host's
    StepShape shape;
    StepResults done;
    Stage stage = Stage::kIdle;
    bool has_masks = false;  // or needs none
    bool waits_for_masks = false;
    bool has_drafts = false;
  };
  void repack();
  const Decoder& decoder() const;
  Status measure();
  OpContext context(Workspace& workspace);
  void work();
  void run(Buffer& buffer);
  void swap(const StepArrays& a, const StepShape& shape);
  void compute(const StepShape& shape, Workspace& workspace);
  void take_drafts();
  void await_masks();

  std::shared_ptr<const LoadedModel> model_;
  EngineOptions options_;
  ForcedCounts forced_;
  ThreadPool pool_;
  std::shared_ptr<const RepackedWeights> repacked_;  // may be null
  std::optional<Decoder> placed_;                    // the model's with those copies; without: the loaded one serves
  CacheStorage storage_;
  StepLayout layout_;
  ResultLayout result_layout_;
  std::optional<Decoder> mtp_;  // the block for multi-token prediction, if it drafts
  Pages step_, results_, sampled_, history_, kept_;
  Pages host_;  // what was moved to the host
  HostPages host_pages_;
  std::optional<Workspace> workspace_;
  int64_t largest_scratch_ = 0;
  TokenHistory token_history_;
  Buffer buffers_[kMostDepth];
  Buffer* running_ = nullptr;  // on the backend's own thread
  const std::function<void()> drafts_made_ = [this] { take_drafts(); };
  const std::function<void()> await_masks_ = [this] { await_masks(); };

  std::mutex mutex_;
  std::condition_variable changed_;
  int queue_[kMostDepth] = {};
  int queued_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace quire
