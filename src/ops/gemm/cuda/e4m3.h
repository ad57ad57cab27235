// Products of FP8 weights with tokens that are rounded to E4M3 first, on tensor cores that take both (wgmma).
//
//   y[i] = epilogue(scale * sum over blocks of 128 columns of (scale of w * scale of x) * (codes of w * codes of x[i]))
//
// How a row is rounded: ops/gemm/e4m3_tokens.h. A block's sum is one accumulator of a tensor core, which keeps about 14
// bits of the largest of what it adds at once; blocks are added in ascending order in float32. So a row's bits depend
// on that row alone, whatever the tiles; they differ from those of launch_gemm.
#pragma once

#include <cstddef>

#include "ops/gemm/cuda/gemm.h"

namespace quire::gemm {

// Products of FP8 weights, also of rows that are sorted by expert, where there is code for sm_90a. Rows of x need not
// lie together (Problem::x_rows). Product::path means nothing here.
bool takes_e4m3(const Product& p, const cuda::DeviceLimits& device);

// Of room for the rounded rows; never less for more rows.
int64_t e4m3_bytes(const Product& p);

// Enqueues; `room`: device, aligned to 64 bytes. Fault::kBug for what takes_e4m3() refuses.
Status launch_e4m3(cudaStream_t stream, const Product& p, std::byte* room);

// Dense: rows of x in a tile, 64, 128 or 256, of which that is expected to be the fastest. For tests.
int32_t e4m3_tile_rows(const Product& p, int multiprocessors);

}  // namespace quire::gemm
