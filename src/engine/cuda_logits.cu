#include "engine/cuda_logits.h"

#include <optional>
#include <utility>

#include "core/cuda/memory.h"
#include "engine/cuda_device.h"
#include "engine/cuda_weights.h"
#include "ops/cuda/context.h"
#include "ops/registry.h"

namespace quire {
namespace {

using cuda::Memory;

class LogitsPass final : public CudaLogits {
 public:
  LogitsPass(std::shared_ptr<const LoadedModel> model, const StepLayout& layout, KvCacheType kv,
             const ForwardOptions& forward, const ForcedKernels& kernels)
      : model_(std::move(model)),
        layout_(layout),
        kv_(kv),
        forward_(forward),
        kernels_(kernels),
        cache_(model_->model->cache_shape(Device::kCuda, kv)),
        pool_(1) {}
  Status create(int32_t blocks, int gpu);
  Status forward(const std::byte* arrays, const StepShape& shape, float* logits) override;

 private:
  Result<int64_t> measure();
  void enqueue(const StepShape& shape, Workspace& workspace);
  int64_t vocab() const { return model_->model->config().vocab; }

  std::shared_ptr<const LoadedModel> model_;
  StepLayout layout_;
  KvCacheType kv_;
  ForwardOptions forward_;
  ForcedKernels kernels_;
  Machine machine_;
  CacheShape cache_;
  ThreadPool pool_;  // operators expect one
  std::shared_ptr<const CudaWeights> weights_;
  Memory step_, logits_, scratch_, caches_;
  std::optional<Workspace> workspace_;
  int gpu_ = 0;
  CacheViews views_;
  cuda::Context context_;  // the last: what is under way uses the others
};

Status LogitsPass::create(int32_t blocks, int gpu) {
  gpu_ = gpu;
  QUIRE_CHECKED(choose_gpu(*model_, gpu, kv_));
  QUIRE_TRY(machine_, gpu_machine());
  if (kernels_.choice != nullptr) QUIRE_CHECKED(check_forced(*kernels_.choice, machine_));
  QUIRE_CHECKED(context_.create());
  QUIRE_TRY(weights_, model_->on_gpu(0, false, {0, model_->model->config().layers}));
  const auto device = [](int64_t bytes, std::string_view what) {
    return Memory::create(Memory::Where::kDevice, bytes, what);
  };
  QUIRE_TRY(step_, device(layout_.bytes(), "the arrays of a step"));
  QUIRE_TRY(logits_, device(layout_.capacity().logit_rows * vocab() * 4, "logits"));
  QUIRE_TRY(const int64_t scratch, measure());
  QUIRE_TRY(scratch_, device(scratch, "activations and scratch"));
  workspace_ = Workspace::over(scratch_.span());
  const std::optional<int64_t> bytes = CacheViews::bytes(cache_, cache_.counts(blocks, 1));
  if (!bytes) return capacity_error("{} KV blocks are more than there are addresses for", blocks);
  QUIRE_TRY(caches_, device(*bytes, "KV blocks and recurrent states"));
  QUIRE_CHECKED(cuda::check(cudaMemset(caches_.data(), 0, static_cast<size_t>(*bytes)), "clearing the caches"));
  views_ = CacheViews(cache_, caches_.data(), cache_.counts(blocks, 1));
  return {};
}

// Scratch memory of the largest passes, over a prompt and over generated tokens. Operators take it from a range of the
// host's addresses, which nobody touches.
Result<int64_t> LogitsPass::measure() {
  const StepCapacity& c = layout_.capacity();
  Workspace all;
  views_ = CacheViews(cache_, nullptr, cache_.counts(1, 1));
  context_.dry = true;
  for (const int32_t decodes : {0, 1}) {
    const int32_t decode_rows = decodes * c.rows;
    enqueue({.rows = c.rows,
             .decode_rows = decode_rows,
             .segments = 1,
             .decodes = decodes,
             .logit_rows = c.logit_rows,
             .decode_logit_rows = decode_rows,
             .table_width = c.table_width,
             .decode_keys = int64_t{decodes} * c.table_width * kBlockTokens},
            all);
  }
  context_.dry = false;
  QUIRE_CHECKED(std::exchange(context_.status, Status{}));
  return all.high_water() + (int64_t{1} << 20);
}

void LogitsPass::enqueue(const StepShape& shape, Workspace& workspace) {
  const OpContext ctx{.pool = pool_,
                      .workspace = workspace,
                      .machine = machine_,
                      .choice = kernels_.choice,
                      .forced = context_.dry ? nullptr : kernels_.counts,
                      .gpu = &context_};
  weights_->decoder().forward(
      ctx, layout_.batch(step_.data(), shape, nullptr), views_, forward_,
      {.logits = make_tensor(reinterpret_cast<float*>(logits_.data()), {shape.logit_rows, vocab()})});
}

Status LogitsPass::forward(const std::byte* arrays, const StepShape& shape, float* logits) {
  // Whoever judges two models holds two of these.
  QUIRE_CHECKED(cuda::check(cudaSetDevice(gpu_), "choosing the GPU"));
  QUIRE_CHECKED(cuda::check(cudaMemcpyAsync(step_.data(), arrays, static_cast<size_t>(layout_.used_bytes(shape)),
                                            cudaMemcpyHostToDevice, context_.stream),
                            "copying a step to the GPU"));
  enqueue(shape, *workspace_);
  QUIRE_CHECKED(std::exchange(context_.status, Status{}));
  QUIRE_CHECKED(cuda::check(cudaMemcpyAsync(logits, logits_.data(), static_cast<size_t>(shape.logit_rows * vocab() * 4),
                                            cudaMemcpyDeviceToHost, context_.stream),
                            "copying logits from the GPU"));
  return cuda::check(cudaStreamSynchronize(context_.stream), "the GPU computing a step");
}

}  // namespace

Result<std::unique_ptr<CudaLogits>> make_cuda_logits(const std::shared_ptr<const LoadedModel>& model,
                                                     const StepLayout& layout, int32_t blocks, KvCacheType kv, int gpu,
                                                     const ForwardOptions& forward, const ForcedKernels& kernels) {
  auto pass = std::make_unique<LogitsPass>(model, layout, kv, forward, kernels);
  QUIRE_CHECKED(pass->create(blocks, gpu));
  return std::unique_ptr<CudaLogits>(std::move(pass));
}

}  // namespace quire
