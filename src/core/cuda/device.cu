#include "core/cuda/device.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>

#include "core/cuda/launch.h"
#include "core/cuda/target.cuh"

namespace quire::cuda {
namespace {

// Never launched: how much static shared memory it takes says what the code that the driver chose was compiled for.
constexpr int kMark = 4096;
__global__ void probe(int* out) {
  constexpr int kMarks = kForWgmma ? 2 : kForSm90 ? 1 : 0;
  __shared__ volatile char marks[kMarks * kMark + 1];
  marks[threadIdx.x] = 1;
  *out = marks[0];
}

std::atomic<int> shared_cap{0};

Result<DeviceLimits> look_up(int device) {
  DeviceLimits d;
  const auto read = [&](int* to, cudaDeviceAttr what) {
    return check(cudaDeviceGetAttribute(to, what, device), "reading the limits of the device");
  };
  QUIRE_CHECKED(read(&d.multiprocessors, cudaDevAttrMultiProcessorCount));
  QUIRE_CHECKED(read(&d.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin));
  QUIRE_CHECKED(read(&d.major, cudaDevAttrComputeCapabilityMajor));
  QUIRE_CHECKED(read(&d.minor, cudaDevAttrComputeCapabilityMinor));
  int integrated = 0;
  QUIRE_CHECKED(read(&integrated, cudaDevAttrIntegrated));
  d.integrated = integrated != 0;
  if (d.major < kOldestMajor)
    return request_error("a GPU of compute capability {}.{}: kernels are for {}.0 and newer", d.major, d.minor,
                         kOldestMajor);
  cudaFuncAttributes attributes{};
  const cudaError_t code = cudaFuncGetAttributes(&attributes, probe);
  if (code != cudaSuccess) {
    cudaGetLastError();
    return request_error(
        "this program has no code for GPUs of compute capability {}.{} ({}); QUIRE_CUDA_ARCHITECTURES "
        "chooses when it is compiled",
        d.major, d.minor, cudaGetErrorString(code));
  }
  const auto marks = attributes.sharedSizeBytes / kMark;
  d.dependent_launch = marks >= 1;
  d.wgmma = marks >= 2;
  return d;
}

}  // namespace

Result<DeviceLimits> device_limits() {
  static std::mutex mutex;
  static std::map<int, DeviceLimits> known;
  int device = 0;
  QUIRE_CHECKED(check(cudaGetDevice(&device), "cudaGetDevice"));
  const std::scoped_lock lock(mutex);
  auto at = known.find(device);
  if (at == known.end()) {
    QUIRE_TRY(const DeviceLimits found, look_up(device));
    at = known.emplace(device, found).first;
  }
  DeviceLimits limits = at->second;
  if (const int cap = shared_cap.load(std::memory_order_relaxed); cap > 0)
    limits.shared_bytes = std::min(limits.shared_bytes, cap);
  return limits;
}

int64_t& launched_kernels() {
  static thread_local int64_t count = 0;
  return count;
}

void cap_shared_memory(int bytes) {
  shared_cap.store(bytes, std::memory_order_relaxed);
}

}  // namespace quire::cuda
