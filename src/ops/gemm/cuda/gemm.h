// Products of packed weights with rows of tokens, dense and grouped by experts: what linear, swiglu_mlp and moe launch.
//
//   y[i] = epilogue(scale[e] * W[e] x[i])
//
// The sum over K is float32 accumulators of one K slice each (PackedWeight::k_slice_columns), walked in ascending steps
// of 16 columns by tensor cores, and K slices added in ascending order in float32: the same in every kernel here, so a
// row's bits depend on that row alone. Then, each rounded once: times the scale, plus bias, plus the residual.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "core/cuda/limits.h"
#include "core/result.h"
#include "ops/gemm/cuda/choose.h"

namespace quire::gemm {

// The path that kAuto means for a product: what is expected to be fastest (choose.h). Of kTile rows of x that belong
// together must lie together (Problem::x_rows null).
Path choose_path(const Product& p, const cuda::DeviceLimits& device);

// What that choice is made of: how wide tiles of a format can be on a card, and whether there is a sweep of the product
// that is no detour.
TileLimits tile_limits(TileFormat format, const cuda::DeviceLimits& device);
bool can_sweep(const Product& p, const cuda::DeviceLimits& device);

// Whether the product can be computed by p.path. K must be a multiple of 8, and rows of x aligned.
bool takes(const Product& p, const cuda::DeviceLimits& device);

// What `sums` must have room for, in floats: never less for more rows. 0 where neither slicing nor dealing out helps.
int64_t sliced_floats(const Product& p, const cuda::DeviceLimits& device);

// Enqueues; allocates nothing, waits for nothing. Fault::kBug for what takes() refuses.
Status launch_gemm(cudaStream_t stream, const Product& p);

}  // namespace quire::gemm
