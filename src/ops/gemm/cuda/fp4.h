// Products of weights in NVFP4 or MXFP4 with tokens that are rounded to FP4 first, on tensor cores that take both:
// mma.sync with scales of blocks, of compute capability 12.x.
//
//   y[i] = epilogue(scale * factor of x[i] * sum over K of (scale of w * scale of x) * (codes of w * codes of x[i]))
//
// How a row is rounded: ops/gemm/fp4_tokens.h. The sum is one accumulator of a tensor core, 64 columns at a time in
// ascending order. So a row's bits depend on that row alone, whatever the tiles; they differ from those of launch_gemm.
#pragma once

#include <cstddef>

#include "ops/gemm/cuda/gemm.h"

namespace quire::gemm {

// Whether the code that the current device runs has such products.
bool has_fp4_products();

// Products of such weights, also of rows that are sorted by expert. Rows of x need not lie together (Problem::x_rows).
// Product::path means nothing here.
bool takes_fp4(const Product& p, const cuda::DeviceLimits& device);

// Of room for the rounded rows; never less for more rows.
int64_t fp4_bytes(const Product& p);

// Enqueues; `room`: device, aligned to 64 bytes. Fault::kBug for what takes_fp4() refuses, or where there are none.
Status launch_fp4(cudaStream_t stream, const Product& p, std::byte* room);

}  // namespace quire::gemm
