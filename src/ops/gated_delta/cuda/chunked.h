// gdn_chunked on the GPU: the delta rule over the prompt chunks of a step, on tensor cores.
#pragma once

#include <cuda_runtime_api.h>

#include "core/cuda/limits.h"
#include "ops/gated_delta/cuda/slots.h"

namespace quire::cuda {

// For each row of each prompt segment (segments.decodes and up), per value head:
//     S <- e^g S;    S <- S + beta (v - S k) k^T;    out = Dk^(-1/2) S q
// in chunks of 64 tokens on the grid anchored at position 0, the last one partial. A segment at position 0
// starts from S = 0, whatever its slot holds, otherwise from the slot's S0, which is left as the state after
// the segment's last token (so that the sequence's next anchor is position + count, and no token pending).
//   q, k [T, Hk, Dk], v [T, Hv, Dv], out [T, Hv, Dv] bf16;  g, beta [T, Hv] f32;  all contiguous, out does
//     not alias
// Requires position % 64 == 0: the kernel traps otherwise. Factors of products are rounded to bf16 (the state
// too, where it is multiplied; it is kept in float32), sums are float32, triangular systems are inverted in
// float32. A row's bits depend on its own sequence and position only. Bound: 2 * 64 * (3 Dk + 2 Dv) + 6 Dk Dv
// operations per row, head.
struct GdnChunkedParams {
  DeltaShape shape;
  DeltaSlots slots;
  SegmentArray segments;
  int32_t prompt_rows = 0;  // rows of all prompt segments together, or a bound of that
  const __nv_bfloat16 *q = nullptr, *k = nullptr, *v = nullptr;
  const float *g = nullptr, *beta = nullptr;
  __nv_bfloat16* out = nullptr;
  int32_t slab =
      0;  // value columns of a block of the scan: 64 if there is room, 32, or 0: chosen. The bits are the same.
  void* workspace = nullptr;  // gdn_chunked_workspace_bytes, aligned to 16
};

// Scratch for prompt_rows rows in at most `prompts` segments: 268 bytes per row and value head.
int64_t gdn_chunked_workspace_bytes(const DeltaShape& shape, int64_t prompt_rows, int64_t prompts);

// What prompts' chunks are scanned in where nobody asks for a slab: narrow ones take 0.6 of the time of wide ones where
// every block has a multiprocessor to itself. Wide ones need shared memory that cards before compute capability 9.0
// lack.
bool wide_scan_has_room(const DeviceLimits& device);
int32_t choose_slab(const DeltaShape& shape, int64_t prompts, const DeviceLimits& device);

// Enqueues two kernels; capturable.
Status launch_gdn_chunked(cudaStream_t stream, const GdnChunkedParams& params);

}  // namespace quire::cuda
