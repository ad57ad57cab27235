// The kernels of vision_attention on a GPU.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/result.h"
#include "ops/vision_attention/vision_attention.h"

namespace quire::cuda {

// Queries and keys turned by their patches' places and rounded to bf16: every row of a batch, also those of no span.
struct TurnParams {
  const __nv_bfloat16 *q, *k;  // [rows][heads * d]
  int64_t q_stride, k_stride;  // elements, of rows; multiples of 4
  const int32_t* positions;    // [rows][2]
  int64_t position_stride;
  const float* inv_freq;  // [d / 4]
  PlanePairs pairs;
  __nv_bfloat16 *q_to, *k_to;  // [rows][heads * d]
  int32_t rows = 0, heads = 0, d = 0;
};
Status launch_turn(cudaStream_t stream, const TurnParams& p);

// Rows of a span attend to each other. Rows of q, k and v begin at multiples of 16 bytes, those of out at multiples
// of 4. d is a multiple of 8, 512 at most.
struct AttendParams {
  const __nv_bfloat16 *q, *k, *v;
  int64_t q_stride, k_stride, v_stride, out_stride;  // elements, of rows
  __nv_bfloat16* out;
  const RowSpan* spans;  // on the device
  int32_t span_count = 0, most_rows = 0;
  int32_t heads = 0, d = 0;
  float scale = 1.0f;
};
Status launch_attend(cudaStream_t stream, const AttendParams& p);

}  // namespace quire::cuda
