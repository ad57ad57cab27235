// The two kernels behind launch_gemm, one file for each format so that they compile side by side.
#pragma once

#include <cuda_runtime.h>

#include <type_traits>

#include "core/cuda/device.h"
#include "ops/gemm/cuda/packed.h"

namespace quire::gemm {

struct Problem;

struct LaunchChoice {
  cuda::DeviceLimits device;
  int32_t block_rows = 8;  // rows of x in a unit of work (stream: 8 or 32) or a tile
  bool split = false;      // stream: see GemmParams
  bool overlap = false;
};

template <TileFormat F>
Status launch_stream(cudaStream_t stream, const Problem& p, const LaunchChoice& choice);
template <TileFormat F>
Status launch_tile(cudaStream_t stream, const Problem& p, const LaunchChoice& choice);

// A kernel with its arguments on `grid` blocks. `overlap`: it may start while the kernel before it ends, and waits
// inside for what that one writes.
template <class... Args>
Status launch_kernel(cudaStream_t stream, void (*kernel)(Args...), int grid, int threads, int shared_bytes,
                     bool overlap, std::type_identity_t<Args>... args) {
  QUIRE_CHECKED(
      cuda::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
                  "asking for shared memory"));
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(grid));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = overlap ? 1 : 0;
  return cuda::check(cudaLaunchKernelEx(&config, kernel, args...), "launching a product");
}

}  // namespace quire::gemm
