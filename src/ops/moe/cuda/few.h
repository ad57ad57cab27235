// The expert block of at most eight rows after its router's product, in one launch: a step of few sequences consists of short
// kernels, each of which pays for its start, for finding out what the one before it has chosen, and for its uneven end.
#pragma once

#include "core/cuda/device.h"
#include "core/cuda/grid_barrier.h"
#include "ops/gemm/cuda/problem.cuh"
#include "ops/moe/cuda/routing.h"

namespace quire::moe_cuda {

inline constexpr int kFewRows = 8, kFewExperts = 512;

// Where things lie in shared memory, and how much of it a block needs.
struct FewPlan {
  int32_t warps, chunk_tiles;  // of a block; column tiles of a stage of a warp's ring
  int32_t stage_bytes;
  int32_t h_pitch, mid_pitch;  // bytes from row to row
  int32_t row_tiles;           // of the second product, that a block has at most
  int32_t rows_at, routes_at, results_at, barriers_at, shared_bytes;
};

struct FewRows {
  Routing routing;  // weights, offsets, tokens and slots are not used: every block finds them for itself
  gemm::Problem up, down;  // positions are rows sorted by expert; up writes `mid`, down's y is not used
  float* x;                // [rows, width]: residual stream
  int64_t x_stride;
  bool add_to_x;
  cuda::GridBarrier* barrier;
  FewPlan plan;
};

// The formats of `up` and `down`; false, and nothing launched, if there is no kernel for them or no room in shared memory.
Result<bool> launch_few_rows(cudaStream_t stream, FewRows& few, gemm::TileFormat up, gemm::TileFormat down);

// One of the kernels behind it, each in a file of its own.
template <gemm::TileFormat Up, gemm::TileFormat Down>
Result<bool> launch_few(cudaStream_t stream, FewRows& few, const cuda::DeviceLimits& device);

}  // namespace quire::moe_cuda
