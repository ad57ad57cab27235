// The GPUs of a machine: choosing one, what is left of its memory, and its limits.
#include <algorithm>
#include <chrono>

#include "core/cuda/device.h"
#include "core/cuda/memory.h"
#include "core/log.h"
#include "core/memory.h"
#include "engine/cuda_device_impl.h"
#include "engine/cuda_weights.h"
#include "engine/dry_step.h"
#include "engine/step_backend.h"
#include "ops/cuda/card_costs.h"
#include "ops/gemm/cuda/fp4.h"
#include "ops/registry.h"

namespace quire {
namespace {

using cuda::Memory;

// Bytes read and written a second by copies within the current device: the best of a few.
Result<double> copy_bandwidth() {
  constexpr int64_t kBytes = int64_t{256} << 20;
  QUIRE_TRY(const Memory from, Memory::create(Memory::Where::kDevice, kBytes, "measuring copies"));
  QUIRE_TRY(const Memory to, Memory::create(Memory::Where::kDevice, kBytes, "measuring copies"));
  cudaEvent_t begin = nullptr, end = nullptr;
  QUIRE_CHECKED(cuda::check(cudaEventCreate(&begin), "creating an event"));
  QUIRE_CHECKED(cuda::check(cudaEventCreate(&end), "creating an event"));
  float best = 0;
  Status status;
  for (int i = 0; i < 8 && status.ok(); ++i) {
    float ms = 0;
    for (const cudaError_t code :
         {cudaEventRecord(begin), cudaMemcpyAsync(to.data(), from.data(), kBytes, cudaMemcpyDeviceToDevice),
          cudaEventRecord(end), cudaEventSynchronize(end), cudaEventElapsedTime(&ms, begin, end)})
      if (Status s = cuda::check(code, "measuring copies"); !s.ok()) status = std::move(s);
    if (ms > 0) best = std::max(best, 2.0f * kBytes / (ms * 1e-3f));
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  if (!status.ok()) return status.error();
  return static_cast<double>(best);
}

// As the driver says; 0 where it does not.
cuda::CardRates rates_of(int gpu) {
  const auto read = [&](cudaDeviceAttr what) -> double {
    int value = 0;
    if (cudaDeviceGetAttribute(&value, what, gpu) == cudaSuccess) return value;
    cudaGetLastError();  // forget it
    return 0;
  };
  return {.clock_ghz = read(cudaDevAttrClockRate) * 1e-6,
          .bandwidth_gbs = 2 * read(cudaDevAttrMemoryClockRate) * 1e-6 * read(cudaDevAttrGlobalMemoryBusWidth) / 8};
}

Status check_device(int gpu) {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code != cudaSuccess || count == 0)
    return request_error("no NVIDIA GPU can be used ({}); use --device cpu",
                         code == cudaSuccess ? "there is none" : cudaGetErrorString(code));
  if (gpu >= count)
    return request_error("--gpu {}: there {} {}, counted from 0 (`quire devices` lists them)", gpu,
                         count == 1 ? "is" : "are", count);
  QUIRE_CHECKED(cuda::check(cudaSetDevice(gpu), "choosing the GPU"));
  QUIRE_TRY(const cuda::DeviceLimits limits, cuda::device_limits());
  cuda::use_computed_costs(limits, rates_of(gpu));
  return {};
}

}  // namespace

bool has_cuda() {
  return true;
}

Result<GpuMemory> gpu_memory(int64_t weights) {
  size_t free = 0, total = 0;
  QUIRE_CHECKED(cuda::check(cudaMemGetInfo(&free, &total), "asking for free GPU memory"));
  QUIRE_TRY(const cuda::DeviceLimits limits, cuda::device_limits());
  if (limits.integrated) return memory_shared_with_host(static_cast<int64_t>(total), available_memory(), weights);
  return GpuMemory{static_cast<int64_t>(total), static_cast<int64_t>(total - free), weights};
}

Result<Machine> gpu_machine() {
  QUIRE_TRY(const cuda::DeviceLimits limits, cuda::device_limits());
  return Machine{.device = Device::kCuda, .gpu = limits, .fp4 = gemm::has_fp4_products()};
}

Status check_gpu_options(const EngineOptions& o) {
  QUIRE_TRY(const Machine machine, gpu_machine());
  QUIRE_CHECKED(check_forced(o.kernels, machine));
  if (o.probe) return request_error("intermediates can be dumped with --device cpu and reference only");
  return {};
}

Result<Machine> open_gpu(int gpu) {
  QUIRE_CHECKED(check_device(gpu));
  return gpu_machine();
}

Status choose_gpu(const LoadedModel& model, int gpu, KvCacheType kv_cache) {
  QUIRE_TRY(const Machine machine, open_gpu(gpu));
  return check_gpu_kernels(model.model->decoder(), machine, kv_cache).context("this GPU cannot compute the model");
}

// The model's vision tower, where it has one and the GPU computes it.
Result<std::shared_ptr<const CudaTower>> place_tower(const LoadedModel& model, int threads) {
  std::shared_ptr<const CudaTower> tower;
  if (!model.vision) return tower;
  QUIRE_TRY(const Machine machine, gpu_machine());
  if (const Status usable = check_gpu_kernels(*model.vision->tower, machine); usable.ok()) {
    QUIRE_TRY(tower, model.tower_on_gpu(threads));
  } else {
    log_warning(fmt::format("images are not taken: {}", usable.error().message));
  }
  return tower;
}

Result<MemoryOfEngine> place_on_gpu(const std::shared_ptr<const LoadedModel>& model, const EngineOptions& options,
                                    bool mtp, LayerRange layers) {
  QUIRE_CHECKED(choose_gpu(*model, options.gpu, options.kv_cache));
  QUIRE_CHECKED(check_gpu_options(options));
  QUIRE_TRY(const GpuMemory before, gpu_memory(0));
  const bool whole = layers == LayerRange{0, model->model->config().layers};
  if (whole) QUIRE_CHECKED(check_room_for_weights(before, model->file.tensor_bytes()));
  const auto begin = std::chrono::steady_clock::now();
  QUIRE_TRY(const std::shared_ptr<const CudaWeights> weights, model->on_gpu(options.threads, mtp, layers));
  std::shared_ptr<const CudaTower> tower;
  if (layers.first == 0) {
    QUIRE_TRY(tower, place_tower(*model, options.threads));
  }
  const int64_t bytes = weights->bytes() + (tower != nullptr ? tower->bytes() : 0);
  log_info(fmt::format("cuda{}: weights {:.2f} s ({:.1f} GiB)",
                       whole ? "" : fmt::format(" GPU {}, layers {} to {}", options.gpu, layers.first, layers.end - 1),
                       std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(),
                       static_cast<double>(bytes) / (1 << 30)));
  QUIRE_TRY(const GpuMemory memory, gpu_memory(bytes));
  const auto step_bytes = [model, weights, tower](const EnginePlan& plan) -> Result<int64_t> {
    QUIRE_TRY(std::unique_ptr<ComputeDevice> device, make_cuda_device(model, plan));
    return StepBackend::step_bytes(model, plan, std::move(device));
  };
  MemoryOfEngine has;
  has.memory.gpu = memory;
  if (tower != nullptr) has.memory.encoder = encoder_room(*model->vision);
  has.memory.step_bytes = step_bytes;
  has.placed = std::make_shared<const std::pair<decltype(weights), decltype(tower)>>(weights, tower);
  return has;
}

Result<std::vector<GpuInfo>> list_gpus() {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code != cudaSuccess) return request_error("no NVIDIA GPU can be used ({})", cudaGetErrorString(code));
  int current = 0;
  QUIRE_CHECKED(cuda::check(cudaGetDevice(&current), "asking for the current GPU"));
  std::vector<GpuInfo> all;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp p{};
    QUIRE_CHECKED(cuda::check(cudaGetDeviceProperties(&p, i), "looking at a GPU"));
    QUIRE_CHECKED(cuda::check(cudaSetDevice(i), "choosing a GPU"));
    size_t free = 0, total = 0;
    QUIRE_CHECKED(cuda::check(cudaMemGetInfo(&free, &total), "asking for free GPU memory"));
    all.push_back({.name = p.name,
                   .major = p.major,
                   .minor = p.minor,
                   .multiprocessors = p.multiProcessorCount,
                   .memory = static_cast<int64_t>(total),
                   .free = static_cast<int64_t>(free)});
    const auto limits = cuda::device_limits();
    if (!limits.ok()) {
      all.back().unusable = limits.error().message;
      continue;
    }
    if (limits->integrated) {
      const GpuMemory shared = memory_shared_with_host(static_cast<int64_t>(total), available_memory(), 0);
      all.back().shares_memory = true;
      all.back().free = shared.total - shared.used;
    }
    all.back().kernels = limits->wgmma ? "wgmma" : "mma.sync";
    QUIRE_TRY(all.back().copy_bandwidth, copy_bandwidth());
  }
  QUIRE_CHECKED(cuda::check(cudaSetDevice(current), "choosing a GPU"));
  return all;
}

}  // namespace quire
