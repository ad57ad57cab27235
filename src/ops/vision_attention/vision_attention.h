// Attention among the patches of an image, in both directions, without a cache.
#pragma once

#include "ops/op.h"

namespace quire {

// Rows [row, row + count) attend to each other and to nobody else: the patches of an image, or of a film's frame.
struct RowSpan {
  int32_t row = 0, count = 0;
};

// The spans of a batch: apart from each other, in the order of their rows. Rows of no span are padding, and a span may
// be empty.
struct RowSpans {
  const RowSpan* data = nullptr;
  int32_t count = 0;
  // What the host knows, for sizing grids and scratch memory.
  int32_t most_rows = 0;  // of a span, at most
  int64_t pairs = 0;      // the sum of their counts' squares

  // On the host, for memory that it can read.
  const RowSpan* begin() const { return data; }
  const RowSpan* end() const { return data + count; }
};

// Which elements of a head turn together. Pair j < d / 2 is
enum class PlanePairs : uint8_t {
  kAcross,  // elements j and j + d / 2
  kWithin,  // of j < d / 4 elements j and j + d / 4, of the others j + d / 4 and j + d / 2: each half on its own
};

// Rotates heads by where a patch lies. The first half of the pairs turns by the first of a patch's coordinates, the
// second half by the other one, both with the same frequencies:
//   angle of pair j = positions[t][0] * inv_freq[j]            j < d / 4
//                   = positions[t][1] * inv_freq[j - d / 4]    the others
// in float32, cosine and sine correctly rounded or nearly so.
struct PlaneRotation {
  Tensor positions;  // [T, 2] i32: row and column in the order that the model has, each in [0, side)
  Tensor inv_freq;   // [d / 4] f32
  int32_t side = 0;
  PlanePairs pairs = PlanePairs::kAcross;
};

// out[t, h] = softmax(scale * rotated(q[t, h]) . rotated(K)) V over the rows of t's span.
//   q, k, v [T, H, d]  activation type; a row's heads are contiguous, and its stride is any: three parts of one product
//   out     [T, H * d] activation type; may be none of these. Rows of no span stay as they are
// d is a multiple of 8. Without positions nothing is rotated. Kernels round rotated queries and keys to bf16.
// Softmax in float32, keys walked in groups cut at fixed distances from the span's beginning, in ascending order: a
// row's bits depend on its span alone, not on other spans, on where the span lies in the batch, or on threads.
struct VisionAttentionArgs {
  Tensor q, k, v;
  PlaneRotation rotation;
  RowSpans spans;
  float scale = 1.0f;
  Tensor out;
};
void vision_attention(const OpContext& ctx, const VisionAttentionArgs& a);
extern const Operator<VisionAttentionArgs> kVisionAttentionOp;

}  // namespace quire
