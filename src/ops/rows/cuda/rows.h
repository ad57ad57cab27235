// Token embedding, the gathering of rows, the sum of partial results, the soft cap and what a gate lets through on CUDA
// (ops/rows/rows.h): device pointers and host-known bounds. Launches only enqueue and can be captured.
#pragma once

#include <cuda_runtime_api.h>

#include "core/dtype.h"
#include "core/result.h"
#include "ops/gemm/activation.h"
#include "ops/rows/cuda/limits.h"

namespace quire::cuda {

// x[r] = scale * table[token of row r], bit for bit what the CPU computes.
//   tokens  [rows] i32      each in [0, vocab), but for rows with a source
//   sources [rows] i32      or null: of row r, the batch slot whose token of the step before it is, or -1: tokens[r]
//   sampled [batch_slots] i32    with sources; a negative token is taken for token 0
//   table   [vocab, width]  in the file's layout, 16-byte aligned: F32, BF16, F16, Q8_0 or NVFP4 (embed_takes); the
//                           width a multiple of 64 for NVFP4, of 32 for Q8_0, of 8 for the others
//   x       [rows, width] f32, 16-byte aligned
// A token beyond the vocabulary (a bug of the caller's) reads row 0 instead of memory that is not the table's.
struct EmbedParams {
  const int32_t* tokens = nullptr;
  const int32_t* sources = nullptr;
  const int32_t* sampled = nullptr;
  DType dtype = DType::kBF16;
  const void* table = nullptr;
  float scale = 1.0f;  // the per-tensor factor of NVFP4 files
  int rows = 0, vocab = 0, width = 0;
  float* x = nullptr;
};
Status launch_embed(cudaStream_t stream, const EmbedParams& p);

// y[i] = x[rows[i]]: rows of row_bytes (a multiple of 2), strides in bytes. Rows are faster if everything is a multiple
// of
// 16. An index outside [0, x_rows) leaves y[i] as it was: padding.
struct GatherRowsParams {
  const void* x = nullptr;
  const int32_t* rows = nullptr;
  void* y = nullptr;
  int count = 0, x_rows = 0;
  int64_t row_bytes = 0, x_stride = 0, y_stride = 0;
  bool add_to_y = false;  // of float32
};
Status launch_gather_rows(cudaStream_t stream, const GatherRowsParams& p);

// x[t] = or += the sum of partials[p][t] over ascending p, and times `scale` then, in the order of ReducePartialsArgs:
// the CPU's bits. Strides in elements. Faster if everything is a multiple of 4 elements.
struct ReducePartialsParams {
  const float* partials = nullptr;
  int count = 0;  // 1 to 8
  int64_t partial_stride = 0, row_stride = 0;
  float* x = nullptr;
  int64_t x_stride = 0;
  int rows = 0, width = 0;
  bool add_to_x = true;
  float scale = 1.0f;
  void* h = nullptr;  // x once more, as float or bf16; may be null
  int64_t h_stride = 0;
  bool h_bf16 = false;
};
Status launch_reduce_partials(cudaStream_t stream, const ReducePartialsParams& p);

// x = cap * tanh(x / cap) in place, [rows, width], rows x_stride elements apart. An element's bits depend on its value
// and the cap alone. Faster if everything is a multiple of 4 elements.
struct SoftCapParams {
  float* x = nullptr;
  int64_t x_stride = 0;
  int rows = 0, width = 0;
  float cap = 1.0f;
};
Status launch_soft_cap(cudaStream_t stream, const SoftCapParams& p);

// y = f(gate) * up (GatedProductArgs), [rows, width], strides in elements. An element's bits depend on its gate and its
// up alone. Faster if everything is a multiple of 4 elements.
struct GatedProductParams {
  const float* gate = nullptr;
  const float* up = nullptr;
  int64_t gate_stride = 0, up_stride = 0;
  void* y = nullptr;  // float or bf16
  int64_t y_stride = 0;
  bool y_bf16 = false;
  int rows = 0, width = 0;
  GateActivation activation = GateActivation::kSilu;
};
Status launch_gated_product(cudaStream_t stream, const GatedProductParams& p);

}  // namespace quire::cuda
