// The expert block of at most eight rows after its router's product, in one launch: a step of few sequences consists of
// short kernels, each of which pays for its start, for finding out what the one before it has chosen, and for its
// uneven end.
#pragma once

#include <cuda_bf16.h>

#include <optional>

#include "core/cuda/device.h"
#include "core/cuda/grid_barrier.h"
#include "core/cuda/weight_order.h"
#include "ops/gemm/activation.h"
#include "ops/gemm/cuda/packed.h"
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

// Weights of experts, as the kernel needs to know them.
struct FewWeights {
  const uint8_t* data;
  // [experts], [experts, rows], or null: as of gemm::Part. The expert behind the others, a shared one, has no bias.
  const float *scale, *scale2, *bias, *bias2;
  int64_t expert_bytes;
  int32_t rows, row_tiles, cols, col_tiles, k_slice_tiles, k_slices;

  FewWeights(const gemm::PackedWeight& w, const float* scale_of, const float* scale2_of, const float* bias_of,
             const float* bias2_of)
      : data(reinterpret_cast<const uint8_t*>(w.data)),
        scale(scale_of),
        scale2(scale2_of),
        bias(bias_of),
        bias2(bias2_of),
        expert_bytes(w.expert_bytes()),
        rows(w.rows),
        row_tiles(w.row_tiles()),
        cols(w.cols),
        col_tiles(w.col_tiles()),
        k_slice_tiles(w.k_slice_columns() / gemm::kTileCols),
        k_slices(w.k_slices()) {}
};

// Small: what is not at hand when a kernel starts takes long to come.
struct FewRows {
  Routing routing;      // weights, offsets, tokens and slots are not used: every block finds them for itself
  FewWeights up, down;  // paired; not paired
  __nv_bfloat16* mid;   // [rows sorted by expert, up.rows]: gate and up in one
  float* x;             // [rows, down.rows]: residual stream
  int64_t x_stride;
  bool add_to_x;
  GateActivation activation;
  cuda::GridBarrier* barrier;
  cuda::Prefetch next;
  FewPlan plan;
};

// Nothing where there is no kernel for these formats, or no room in shared memory.
std::optional<FewPlan> plan_few_rows(const FewRows& few, gemm::TileFormat up, gemm::TileFormat down,
                                     const cuda::DeviceLimits& device);
// Enqueues what has a plan. `next`: what the kernel fetches into the L2 for the product behind it.
Status launch_few_rows(cudaStream_t stream, FewRows& few, const cuda::WeightOrder::Read& next, gemm::TileFormat up,
                       gemm::TileFormat down, const cuda::DeviceLimits& device);

// One of the kernels behind it, each an object of its own (instances.cmake).
template <gemm::TileFormat Up, gemm::TileFormat Down>
Status launch_few(cudaStream_t stream, const FewRows& few, const cuda::DeviceLimits& device);

}  // namespace quire::moe_cuda
