// A GPU, for the conformance suites: operators through their entries, as the engine calls them.
#include "core/cuda/memory.h"
#include "ops/attention/cuda/layout.h"
#include "ops/conformance/gpu.h"
#include "ops/cuda/context.h"
#include "ops/cuda/weights.h"
#include "ops/gemm/cuda/fp4.h"
#include "ops/gemm/cuda/pack.h"
#include "ops/rows/cuda/limits.h"

namespace quire::conformance {
namespace {

using cuda::Memory;

constexpr int64_t kOperandBytes = int64_t{128} << 20, kMemoryBytes = int64_t{512} << 20, kGuardBytes = 256;

class CudaGpu final : public Gpu {
 public:
  Status open(int gpu);

  std::string name() const override { return name_; }
  Machine machine() const override {
    return {.device = Device::kCuda, .gpu = limits_, .fp4 = gemm::has_fp4_products()};
  }
  std::span<std::byte> memory() override { return memory_.span(); }
  std::span<std::byte> staging() override { return staging_.span(); }
  int64_t packed_bytes(const Weight& w, bool paired) const override {
    return (paired ? cuda::packed_pair(w) : cuda::packed(w)).bytes();
  }
  Status pack(const Weight& w, const Weight* up, std::byte* to, int64_t experts, int64_t first_expert) override;
  bool takes_table(DType type, int64_t width) const override { return cuda::embed_takes(type, width); }
  int64_t kv_offset(int64_t token, int64_t c, int64_t, bool) const override {
    return cuda::kv_offset(static_cast<int>(token), static_cast<int>(c));
  }
  Status run(int64_t bytes, const std::function<Status()>& pack,
             const std::function<void(const OpContext&)>& op) override;

 private:
  Status copy(void* to, const void* from, int64_t bytes, cudaMemcpyKind kind) {
    return cuda::check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kind, context_.stream),
                       "copying operands");
  }

  std::string name_;
  cuda::DeviceLimits limits_;
  ThreadPool pool_{1};  // operators expect one
  Memory memory_, staging_, guard_;
  cuda::Context context_;
};

Status CudaGpu::open(int gpu) {
  int count = 0;
  if (const cudaError_t code = cudaGetDeviceCount(&count); code != cudaSuccess || count == 0)
    return request_error("no NVIDIA GPU can be used ({})",
                         code == cudaSuccess ? "there is none" : cudaGetErrorString(code));
  if (gpu >= count) return request_error("there is no GPU {}: `quire devices` lists them", gpu);
  cudaDeviceProp p{};
  QUIRE_CHECKED(cuda::check(cudaGetDeviceProperties(&p, gpu), "looking at the GPU"));
  name_ = fmt::format("{}, compute capability {}.{}", p.name, p.major, p.minor);
  QUIRE_CHECKED(cuda::check(cudaSetDevice(gpu), "choosing the GPU"));
  QUIRE_TRY(limits_, cuda::device_limits());
  QUIRE_CHECKED(context_.create());
  QUIRE_TRY(memory_, Memory::create(Memory::Where::kDevice, kMemoryBytes, "operands and scratch"));
  QUIRE_TRY(staging_, Memory::create(Memory::Where::kPinned, kOperandBytes, "operands"));
  QUIRE_TRY(guard_, Memory::create(Memory::Where::kPinned, kGuardBytes, "operands"));
  return {};
}

Status CudaGpu::pack(const Weight& w, const Weight* up, std::byte* to, int64_t experts, int64_t first_expert) {
  gemm::PackedWeight destination = up == nullptr ? cuda::packed(w) : cuda::packed_pair(w);
  destination.experts = static_cast<int32_t>(experts);
  return gemm::launch_pack(context_.stream, {.dtype = w.dtype,
                                             .source = w.data,
                                             .source2 = up == nullptr ? nullptr : up->data,
                                             .rows = static_cast<int32_t>(w.rows),
                                             .cols = static_cast<int32_t>(w.cols),
                                             .experts = static_cast<int32_t>(w.experts),
                                             .packed = to,
                                             .destination = destination,
                                             .first_expert = static_cast<int32_t>(first_expert)});
}

Status CudaGpu::run(int64_t bytes, const std::function<Status()>& pack,
                    const std::function<void(const OpContext&)>& op) {
  const auto call = [&](Workspace& workspace) {
    op({.pool = pool_, .workspace = workspace, .machine = machine(), .gpu = &context_});
  };
  const std::span<std::byte> rest = memory_.span().subspan(static_cast<size_t>(bytes));
  Workspace measured = Workspace::over(rest.first(rest.size() - kGuardBytes));
  context_.dry = true;
  call(measured);
  context_.dry = false;
  const int64_t scratch = measured.high_water();

  QUIRE_CHECKED(copy(memory_.data(), staging_.data(), bytes, cudaMemcpyHostToDevice));
  QUIRE_CHECKED(pack());
  QUIRE_CHECKED(
      cuda::check(cudaMemsetAsync(rest.data(), 0xff, static_cast<size_t>(scratch + kGuardBytes), context_.stream),
                  "poisoning scratch memory"));
  Workspace workspace = Workspace::over(rest.first(static_cast<size_t>(scratch)));
  call(workspace);
  const Status enqueued = std::exchange(context_.status, Status{});
  QUIRE_CHECKED(copy(staging_.data(), memory_.data(), bytes, cudaMemcpyDeviceToHost));
  QUIRE_CHECKED(copy(guard_.data(), rest.data() + scratch, kGuardBytes, cudaMemcpyDeviceToHost));
  QUIRE_CHECKED(cuda::check(cudaStreamSynchronize(context_.stream), "running the operator"));
  if (!enqueued.ok()) return enqueued;
  for (int64_t i = 0; i < kGuardBytes; ++i)
    if (guard_.data()[i] != std::byte{0xff})
      return Error{Fault::kBug, fmt::format("wrote behind its {} bytes of scratch memory", scratch)};
  return {};
}

}  // namespace

Result<std::unique_ptr<Gpu>> Gpu::create(int gpu) {
  auto made = std::make_unique<CudaGpu>();
  QUIRE_CHECKED(made->open(gpu));
  return std::unique_ptr<Gpu>(std::move(made));
}

}  // namespace quire::conformance
