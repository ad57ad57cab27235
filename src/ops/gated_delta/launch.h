// Inside gated_delta/: from an operator's arguments to the units of work that the vector kernels take.
#pragma once

#include "ops/gated_delta/check.h"
#include "ops/gated_delta/kernels.h"

namespace quire::gdn {

PrepareWork prepare_work(const GdnPrepareArgs& a, const PrepareSizes& n);

// `segments`: those that the operator handles.
DeltaWork delta_work(const GatedDeltaArgs& a, const DeltaSizes& n, const SegmentArray& segments);

// Units per piece of work: about eight pieces per thread, so that uneven threads even out.
inline int64_t grain(int64_t units, int threads) {
  const int64_t g = units / (int64_t{8} * threads);
  return g > 0 ? g : 1;
}

template <auto Units>
void prepare_cpu(const OpContext& ctx, const GdnPrepareArgs& a) {
  const PrepareSizes n = check(a);
  const PrepareWork w = prepare_work(a, n);
  const int64_t units = a.segments.count * w.units();
  ctx.pool.parallel_for(units, grain(units, ctx.pool.size()),
                        [&](int64_t begin, int64_t end, int) { Units(w, begin, end); });
}

// Brings the keys and decays of a decode segment's pending tokens up to date with its rows and with what was folded.
void append_pending(const DeltaWork& w, const Segment& s);

// A unit that takes all value columns of a head computes the products of its keys once; with few heads the
// threads matter more. Either way a column's arithmetic is the same.
int64_t columns_per_unit(int64_t heads, int64_t Dv, int threads);

template <auto Units>
void recurrent_cpu(const OpContext& ctx, const GatedDeltaArgs& a) {
  const DeltaSizes n = check(a, true);
  const SegmentArray decoding = a.segments.decoding();
  if (decoding.count == 0) return;
  Workspace::Scope scope(ctx.workspace);
  RecurrentWork w{};
  w.delta = delta_work(a, n, decoding);
  w.columns = columns_per_unit(decoding.count * n.Hv, n.Dv, ctx.pool.size());
  bool tentative = false;
  for (const Segment& s : decoding) tentative = tentative || s.tentative > 0;
  const int64_t floats = tentative ? (w.columns * n.Dk + 15) / 16 * 16 : 0;
  float* scratch = scope.take<float>(floats * ctx.pool.size());
  const int64_t units = decoding.count * n.Hv * ((n.Dv + w.columns - 1) / w.columns);
  ctx.pool.parallel_for(units, grain(units, ctx.pool.size()), [&](int64_t begin, int64_t end, int thread) {
    Units(w, begin, end, scratch + floats * thread);
  });
  ctx.pool.parallel_for(decoding.count, grain(decoding.count, ctx.pool.size()), [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) append_pending(w.delta, decoding.data[i]);
  });
}

// A unit that takes all value heads of a key head computes the products of keys and queries once for them;
// with few units the threads matter more. Either way a head's arithmetic is the same.
int64_t value_heads_per_unit(int64_t units, int64_t r, int threads);

template <auto Units, auto ScratchBytes>
void chunked_cpu(const OpContext& ctx, const GatedDeltaArgs& a) {
  const DeltaSizes n = check(a, false);
  const SegmentArray prompts = a.segments.prompts();
  const int64_t count = prompts.count;
  if (count == 0) return;
  Workspace::Scope scope(ctx.workspace);
  ChunkedWork w{};
  w.delta = delta_work(a, n, prompts);
  const int64_t r = n.Hv / n.Hk;
  w.heads = value_heads_per_unit(count * n.Hk, r, ctx.pool.size());
  const int64_t bytes = (ScratchBytes(n.Dk, n.Dv, w.heads) + 63) / 64 * 64;
  std::byte* scratch = scope.take<std::byte>(bytes * ctx.pool.size());
  ctx.pool.parallel_for(count * n.Hk * (r / w.heads), 1, [&](int64_t begin, int64_t end, int thread) {
    Units(w, begin, end, scratch + bytes * thread);
  });
}

// Whether the vector kernels' buffers and loops take these sizes.
bool prepare_fits(const GdnPrepareArgs& a);
bool recurrent_fits(const GatedDeltaArgs& a, int64_t width);
bool chunked_fits(const GatedDeltaArgs& a, int64_t width);

}  // namespace quire::gdn
