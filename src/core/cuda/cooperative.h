// Launches of kernels whose blocks wait for each other (core/cuda/grid_barrier.cuh).
//
// Such a kernel must have all of its blocks on the device at the same time. That a block fits each multiprocessor is
// not enough where others compute there too (a second engine of the process, another process under MPS): two such
// grids could each hold places that the other waits for. So they are launched with cudaLaunchAttributeCooperative:
// the driver starts the grid only as a whole, and refuses one that cannot fit.
#pragma once

#include <array>

#include "core/cuda/launch.h"

namespace quire::cuda {

// Whether the driver takes a cooperative kernel that may also start while the kernel before it ends, launched and in
// a graph: tried once for each device, with an empty kernel. Where it does not, such kernels are launched without the
// attribute: starting early is what makes them worth their while, and alone on the device a grid of no more blocks
// than find room is safe, because the blocks of kernels before it end by themselves and those after it come only when
// all of its own are there. Not while the calling thread captures a stream and nobody has asked before; cuda::Context
// does ask.
bool cooperative_may_be_dependent();

// For tests and benchmarks: kernels are launched without the attribute from now on, or with it where that works.
void allow_cooperative(bool allowed);
bool cooperative_is_allowed();

// Fault::kBug where more blocks are asked for than find room at the same time.
Status check_room_for_grid(std::string_view what, const void* kernel, dim3 grid, int threads, int64_t shared_bytes,
                           const DeviceLimits& device);

// As launch() of core/cuda/launch.h.
template <class... Args>
Status launch_cooperative(cudaStream_t stream, std::string_view what, void (*kernel)(Args...), dim3 grid, int threads,
                          int64_t shared_bytes, std::type_identity_t<Args>... args) {
  QUIRE_TRY(const DeviceLimits device, device_limits());
  const auto* const entry = reinterpret_cast<const void*>(kernel);
  QUIRE_CHECKED(allow_shared_memory(entry, what, shared_bytes));
  QUIRE_CHECKED(check_room_for_grid(what, entry, grid, threads, shared_bytes, device));
  std::array<cudaLaunchAttribute, 2> attributes{};
  unsigned count = 0;
  if (device.dependent_launch) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (cooperative_is_allowed() && (!device.dependent_launch || cooperative_may_be_dependent())) {
    attributes[count].id = cudaLaunchAttributeCooperative;
    attributes[count++].val.cooperative = 1;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = attributes.data();
  config.numAttrs = count;
  ++launched_kernels();
  return check(cudaLaunchKernelEx(&config, kernel, args...), what);
}

}  // namespace quire::cuda
