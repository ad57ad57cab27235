// gdn_prepare on the GPU, for the prompt chunks of a step.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/gated_delta/cuda/slots.h"

namespace quire::cuda {

// Rows of the prompt segments (segments.decodes and up): convolution with the slot's last inputs, SiLU,
// split, L2 norms, gates, as ops/gated_delta/gated_delta.h says. A segment at position 0 starts from zeros,
// whatever its slot holds. The slot's ring is left with the segment's last Kc - 1 inputs.
//   qkv [T, C] bf16;  a, b [T, Hv];  rows 16-byte aligned
//   q, k [T, Hk, Dk], v [T, Hv, Dv] bf16 out, contiguous;  g, beta [T, Hv] f32 out, contiguous
// Memory bound: 4 C bytes per row.
inline constexpr int kGdnPrepareRows = 16;  // of a tile
struct GdnPrepareParams {
  DeltaShape shape;
  DeltaWeights weights;
  DeltaSlots slots;
  SegmentArray segments;
  int32_t prompt_rows = 0;  // rows of all prompt segments together, or a bound of that
  const __nv_bfloat16* qkv = nullptr;
  int64_t qkv_stride = 0;
  GateInput a, b;
  __nv_bfloat16 *q = nullptr, *k = nullptr, *v = nullptr;
  float *g = nullptr, *beta = nullptr;
};

// Enqueues one kernel; capturable. A grid has room for 65535 tiles: prompt_rows / kGdnPrepareRows and one for each
// segment.
Status launch_gdn_prepare(cudaStream_t stream, const GdnPrepareParams& params);

}  // namespace quire::cuda
