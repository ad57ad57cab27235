// The kernels behind launch_gemm, one file for each format so that they compile side by side.
#pragma once

#include <cuda_runtime.h>

#include "core/cuda/device.h"
#include "core/cuda/launch.h"
#include "ops/gemm/cuda/packed.h"

namespace quire::gemm {

struct Problem;

struct LaunchChoice {
  cuda::DeviceLimits device;
  int32_t block_rows = 8;  // rows of x in a unit of work (stream and sweep: 8 or 32) or a tile
  bool split = false;      // segments are work of their own, and their sums are stored apart
  bool forced = false;     // sweep: also where it would be slow
};

template <TileFormat F>
Status launch_stream(cudaStream_t stream, const Problem& p, const LaunchChoice& choice);
// False, and nothing launched, where the problem is none for a sweep.
template <TileFormat F>
Result<bool> launch_sweep(cudaStream_t stream, const Problem& p, const LaunchChoice& choice);
template <TileFormat F>
Status launch_tile(cudaStream_t stream, const Problem& p, const LaunchChoice& choice);

// y = epilogue(sum of the segments' sums, in ascending order): those of part i lie in `sums[i]`, [segments][rows][N].
// `unit`: what the decoder's numbers are to be multiplied by (decode.cuh).
Status launch_add_segments(cudaStream_t stream, const Problem& p, const float* const* sums, float unit);

}  // namespace quire::gemm
