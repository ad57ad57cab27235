// Inside vision_attention/: what its files share.
//
// A CPU's kernels are those of paged_attention (ops/attention/kernels.h). Rotated keys and values are packed into
// blocks as a cache has them, and a task's query rows are given as heads that share one KV head, of a single token that
// stands at the span's end: each of them sees all keys.
#pragma once

#include "ops/attention/kernels.h"
#include "ops/vision_attention/vision_attention.h"

namespace quire::vision_attention_detail {

// Runs `task` over all spans. Heads are padded with zeros to a multiple of `multiple` elements.
void run_tasks(const OpContext& ctx, const VisionAttentionArgs& a, int64_t multiple,
               void (*task)(const attention::RowTask& t, const attention::TaskScratch& s));

void reference(const OpContext& ctx, const VisionAttentionArgs& a);

// Cosines and sines of the pairs that turn by a patch's first coordinate, and of those that turn by the other one.
struct Turn {
  const float* cos[2];  // [d / 4] each
  const float* sin[2];
  PlanePairs pairs;
};

// x[0 .. d) turned, to `to`, which may be x.
template <class T>
void turn_head(const T* x, const Turn& turn, int64_t d, T* to) {
  const int64_t quarter = d / 4, half = d / 2;
  const bool across = turn.pairs == PlanePairs::kAcross;
  const int64_t apart = across ? half : quarter;
  for (int64_t part = 0; part < 2; ++part) {
    const float* const cos = turn.cos[part];
    const float* const sin = turn.sin[part];
    for (int64_t i = 0, j = part * (across ? quarter : half); i < quarter; ++i, ++j) {
      const T c = static_cast<T>(cos[i]), s = static_cast<T>(sin[i]), a = x[j], b = x[j + apart];
      to[j] = a * c - b * s;
      to[j + apart] = b * c + a * s;
    }
  }
}

// Of every coordinate below `side`: cosines at table + 2 c quarter, sines a quarter further. Shared out among threads.
void fill_turns(const OpContext& ctx, const PlaneRotation& r, int64_t quarter, float* table);
inline int64_t turns_size(const PlaneRotation& r, int64_t d) {
  return r.positions.empty() ? 0 : r.side * (d / 4) * 2;
}
inline Turn turn_of(const PlaneRotation& r, const float* table, int64_t quarter, int64_t t) {
  const int32_t* const at = r.positions.row<int32_t>(t);
  const float* const first = table + at[0] * quarter * 2;
  const float* const second = table + at[1] * quarter * 2;
  return {{first, second}, {first + quarter, second + quarter}, r.pairs};
}

}  // namespace quire::vision_attention_detail
