// How every kernel is launched: as one that may start while the kernel before it in the stream ends (programmatic
// dependent launch), which hides what a launch and the first loads of weights cost.
//
// So a kernel's threads call wait_for_previous_kernels() (core/cuda/dependent_launch.cuh) before they read or write
// anything that earlier kernels touch; before it, only weights and what the host has copied may be read. All threads
// call it, those without work too: then a kernel's end implies the end of all before it. Code for GPUs before sm_90
// cannot wait, so there kernels run one after the other.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <string_view>
#include <type_traits>

#include "core/cuda/check.h"
#include "core/cuda/device.h"

namespace quire::cuda {

// Only ever raises what a kernel may have: graphs hold launches with more than the last one's. Fault::kBug for more
// than the device's blocks can have.
inline Status allow_shared_memory(const void* kernel, std::string_view what, int64_t bytes) {
  constexpr int64_t kWithoutAsking = 48 << 10;
  if (bytes <= kWithoutAsking) return {};
  cudaFuncAttributes now{};
  QUIRE_CHECKED(check(cudaFuncGetAttributes(&now, kernel), what));
  QUIRE_TRY(const DeviceLimits device, device_limits());
  const int64_t own = static_cast<int64_t>(now.sharedSizeBytes);
  if (own + bytes > device.shared_bytes)
    return Error{Fault::kBug, fmt::format("{}: {} bytes of shared memory, and blocks can have {}", what, own + bytes,
                                          device.shared_bytes)};
  if (now.maxDynamicSharedSizeBytes >= bytes) return {};
  return check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
               what);
}

// How many kernels the calling thread has launched or captured by the functions of this file and of cooperative.h: for
// whoever wants to know whose they are.
int64_t& launched_kernels();

// shared_bytes: dynamic shared memory of a block.
template <class... Args>
Status launch(cudaStream_t stream, std::string_view what, void (*kernel)(Args...), dim3 grid, int threads,
              int64_t shared_bytes, std::type_identity_t<Args>... args) {
  QUIRE_TRY(const DeviceLimits device, device_limits());
  QUIRE_CHECKED(allow_shared_memory(reinterpret_cast<const void*>(kernel), what, shared_bytes));
  cudaLaunchAttribute dependent{};
  dependent.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  dependent.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = &dependent;
  config.numAttrs = device.dependent_launch ? 1 : 0;
  ++launched_kernels();
  return check(cudaLaunchKernelEx(&config, kernel, args...), what);
}

}  // namespace quire::cuda
