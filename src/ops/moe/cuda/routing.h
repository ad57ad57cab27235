// From router logits to rows sorted by expert, and from experts' results back to tokens.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "core/result.h"

namespace quire::moe_cuda {

inline constexpr int kMaxExperts = 1024, kMaxTopK = 32, kMaxGroups = 32;

// ExpertChoice for the device.
struct ExpertRule {
  const float* selection_bias;  // [experts] or null
  int32_t groups, used_groups;
  float scale;
  bool sigmoid, normalised;
  bool plain;  // ExpertChoice::plain()
};

struct Routing {
  const float* logits;  // [parts][rows][experts]: a logit is the sum over parts, in ascending order, times the scale
  int32_t parts;
  const float* scale;  // [1] or null
  const float* bias;   // [experts] or null, of the logits
  ExpertRule rule;
  int32_t rows, experts, top_k;
  // Results of a token: top_k, and one of the shared expert if there is any.
  int32_t results;
  bool shared_sorted;      // the shared expert is sorted like the others, as expert number `experts`
  const __nv_bfloat16* h;  // for the shared expert's gate
  int64_t h_stride;
  int32_t width;               // D
  const float* shared_router;  // [D] or null: 1
  // Results
  uint16_t* choice;  // [rows * top_k, rounded up to a multiple of 8]
  int32_t* chosen;   // [rows, top_k] or null
  float* weights;    // [rows, results]: softmax over the chosen, or by the rule, then sigmoid of the shared gate
  int32_t* offsets;  // [experts + 1 or, with shared_sorted, + 2]
  int32_t* tokens;   // by sorted position: the token,
  int32_t* slots;    // and token * results + rank
};

// positions [rows, results] or null: gets the sorted position of each result that is sorted.
Status launch_routing(cudaStream_t stream, const Routing& r, int32_t* positions);

// to[positions[t * results + r]] = h[t], rows of `width` elements, for every token t and r < copies.
struct Scatter {
  const __nv_bfloat16* h;
  int64_t h_stride;
  const int32_t* positions;  // [rows, results]
  int32_t rows, results, copies, width;
  __nv_bfloat16* to;
};
Status launch_scatter(cudaStream_t stream, const Scatter& s);

// x[t] (or 0) += sum over r of weights[t, r] * results[t * count + r], in float32 in ascending r.
struct Combine {
  const __nv_bfloat16* results;  // [rows * count, width]
  const float* weights;          // [rows, count]
  float* x;
  int64_t x_stride;
  int32_t rows, count, width;
  bool add_to_x = true;
  int32_t blocks = 1;  // that share a token; launch_combine chooses
};
Status launch_combine(cudaStream_t stream, const Combine& c);

}  // namespace quire::moe_cuda
