// The GPUs of a machine, for those who choose one and for those who compare with its limits.
#include <algorithm>

#include "core/cuda/device.h"
#include "core/cuda/memory.h"
#include "engine/cuda_backend.h"

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

}  // namespace

Result<std::vector<GpuInfo>> list_gpus() {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code != cudaSuccess) return request_error("no NVIDIA GPU can be used ({})", cudaGetErrorString(code));
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
    all.back().kernels = limits->wgmma ? "wgmma" : "mma.sync";
    QUIRE_TRY(all.back().copy_bandwidth, copy_bandwidth());
  }
  return all;
}

}  // namespace quire
