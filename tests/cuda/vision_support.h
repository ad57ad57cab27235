// A vision tower on the GPU: its weights placed, a batch uploaded, and what it computes.
#pragma once

#include "core/cuda/memory.h"
#include "core/thread_pool.h"
#include "cuda/support.h"
#include "engine/cuda_weights.h"
#include "ops/cuda/context.h"
#include "vision/tower_support.h"

namespace quire::cuda_test {

class GpuTower {
 public:
  explicit GpuTower(const VisionTower& mapped) {
    auto placed = place_on_gpu(mapped, 0);
    QUIRE_CHECK(placed.ok(), "{}", placed.error().message);
    placed_ = std::move(placed).value();
    const Status created = context_.create();
    QUIRE_CHECK(created.ok(), "{}", created.error().message);
    const auto limits = cuda::device_limits();
    QUIRE_CHECK(limits.ok(), "{}", limits.error().message);
    machine_ = {.device = Device::kCuda, .gpu = *limits};
  }
  const VisionTower& tower() const { return placed_->tower(); }
  cudaStream_t stream() const { return context_.stream; }

  // A batch on the device, with room for what is computed.
  struct Batch {
    VisionBatch host;
    VisionArrays arrays;
    std::vector<cuda::Memory> memory;
    Tensor patches;
    VisionOutput out;
    Workspace scratch;
  };
  Batch upload(const test::TowerInput& in) {
    const VisionConfig& c = tower().config();
    Result<VisionBatch> made = VisionBatch::make(c, in.grids);
    QUIRE_CHECK(made.ok(), "{}", made.error().message);
    Batch b{.host = std::move(made).value()};
    b.arrays = b.host.arrays();
    for (Tensor* t :
         {&b.arrays.positions, &b.arrays.mixed, &b.arrays.mix_weights, &b.arrays.pooled, &b.arrays.pool_weights})
      if (!t->empty()) t->data = copied(b, t->data, t->bytes());
    b.arrays.spans.data = static_cast<const RowSpan*>(
        copied(b, b.arrays.spans.data, b.arrays.spans.count * static_cast<int64_t>(sizeof(RowSpan))));
    b.patches = make_tensor(in.patches.data(), {b.arrays.patches, c.patch_width()});
    b.patches.data = copied(b, in.patches.data(), b.patches.bytes());
    const int64_t levels = std::ssize(c.deepstack);
    b.out.rows = make_tensor(room(b, b.arrays.tokens * c.out_width * 4), DType::kF32, {b.arrays.tokens, c.out_width});
    if (levels > 0)
      b.out.deepstack = make_tensor(room(b, levels * b.arrays.tokens * c.out_width * 4), DType::kF32,
                                    {levels, b.arrays.tokens, c.out_width});
    const int64_t bytes = tower().scratch_bytes(machine_, pool_, b.host, b.patches.dtype, &context_);
    check("measuring scratch memory");
    b.scratch = Workspace::over({static_cast<std::byte*>(room(b, bytes)), static_cast<size_t>(bytes)});
    // What fills memory is another stream's work, which this one's does not wait for.
    must(cudaDeviceSynchronize(), "filling memory");
    return b;
  }
  void compute(Batch& b) {
    const OpContext ctx{.pool = pool_, .workspace = b.scratch, .machine = machine_, .gpu = &context_};
    tower().forward(ctx, b.patches, b.arrays, b.out);
    check("a pass of a tower");
  }
  test::TowerResult run(const test::TowerInput& in) {
    Batch b = upload(in);
    compute(b);
    must(cudaStreamSynchronize(context_.stream), "a tower");
    const auto download = [](const Tensor& t) {
      std::vector<float> host(t.empty() ? 0 : static_cast<size_t>(t.elems()));
      if (!host.empty()) must(cudaMemcpy(host.data(), t.data, host.size() * 4, cudaMemcpyDeviceToHost), "download");
      return host;
    };
    return {download(b.out.rows), download(b.out.deepstack)};
  }

 private:
  // Memory that starts as NaN.
  static void* room(Batch& b, int64_t bytes) {
    auto memory = cuda::Memory::create(cuda::Memory::Where::kDevice, bytes, "a test");
    QUIRE_CHECK(memory.ok(), "{}", memory.error().message);
    must(cudaMemset(memory->data(), 0xff, static_cast<size_t>(memory->bytes())), "cudaMemset");
    b.memory.push_back(std::move(memory).value());
    return b.memory.back().data();
  }
  static void* copied(Batch& b, const void* host, int64_t bytes) {
    void* const to = room(b, bytes);
    must(cudaMemcpy(to, host, static_cast<size_t>(bytes), cudaMemcpyHostToDevice), "upload");
    return to;
  }
  void check(const char* what) {
    const Status status = std::exchange(context_.status, Status{});
    QUIRE_CHECK(status.ok(), "{}: {}", what, status.error().message);
  }

  std::unique_ptr<const CudaTower> placed_;
  cuda::Context context_;
  Machine machine_;
  ThreadPool pool_{1};
};

}  // namespace quire::cuda_test
