// The gated delta net of generated tokens on the GPU, whole: convolution, SiLU, norms, gates, recurrence,
// gated norm.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/gated_delta/cuda/slots.h"

namespace quire::cuda {

// For each row t of each decode segment (the first segments.decodes), per value head, with q, k, v, g and
// beta as gdn_prepare (ops/gated_delta/gated_delta.h) makes them, k rounded to bf16:
//     S <- e^g S;   u = beta (v - S k);   S <- S + u k^T;   o = Dk^(-1/2) S q
//     y = norm_weight * o / sqrt(mean(o^2) + eps) * SiLU(z)
// from the slot's S0 and pending tokens (slots.h), where S0 is zero if the segment's anchor is 0, whatever the slot
// holds, and inputs of the convolution before position 0 are zero. The rows' tokens become pending, and go to the ring.
// Tokens up to
//     anchor' = max(anchor, 16 * floor((position + count - tentative) / 16))
// are then folded into S0; the host computes the same and passes it as the anchor of the next step.
//   qkv [T, C] bf16;  a, b [T, Hv];  z, y [T, Hv * Dv] bf16, y may alias z. Rows of bf16 are aligned to 8
//     bytes
//   norm_weight [Dv] f32, or null: y = o (bf16), z is not read
// Other rows are not touched. Slots of the segments are distinct. Requires position + count - anchor <=
// pending, count <= min(ring - 3, 8) and anchor <= position: the kernel traps otherwise. A row's bits depend
// on the sequence's own tokens and positions only, not on how rows are cut into segments (the anchor moves at
// multiples of 16 in any case), nor on which were tentative. Moves per segment and value head 64 KB of S0 (as
// much again where it is folded, every 16th token) and 778 bytes for each pending token.
struct GdnDecodeParams {
  DeltaShape shape;
  DeltaWeights weights;
  DeltaSlots slots;
  SegmentArray segments;  // data on the device; segments without rows are skipped
  // No kernel that may still run when this one starts writes the segments' slots: they are read at once.
  bool states_at_rest = false;
  const __nv_bfloat16* qkv = nullptr;
  int64_t qkv_stride = 0;  // elements between rows, as all strides
  GateInput a, b;
  const __nv_bfloat16* z = nullptr;
  int64_t z_stride = 0;
  const float* norm_weight = nullptr;
  float eps = 1e-6f;
  __nv_bfloat16* y = nullptr;
  int64_t y_stride = 0;
};

// Enqueues one kernel; capturable. Reads segments before the kernels before it have ended: what writes them in the
// same stream must be followed by a copy or by a kernel that lets nothing start early (copy_slots).
Status launch_gdn_decode(cudaStream_t stream, const GdnDecodeParams& params);

}  // namespace quire::cuda
