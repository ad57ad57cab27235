// Inside gated_delta/: from an operator's arguments to the units of work that the vector kernels take.
#pragma once

#include "ops/gated_delta/check.h"
#include "ops/gated_delta/kernels.h"

namespace quire::gdn {

PrepareWork prepare_work(const GdnPrepareArgs& a, const PrepareSizes& n);

// `chosen` has room for all segments; returns how many of them have this `decode` and any rows.
DeltaWork delta_work(const GatedDeltaArgs& a, const DeltaSizes& n, bool decode, int32_t* chosen,
                     int64_t& count);

// Units per piece of work: about eight pieces per thread, so that uneven threads even out.
inline int64_t grain(int64_t units, int threads) {
  const int64_t g = units / (int64_t{8} * threads);
  return g > 0 ? g : 1;
}

template <auto Units>
void prepare_cpu(const OpContext& ctx, const GdnPrepareArgs& a) {
  const PrepareSizes n = check(a);
  const PrepareWork w = prepare_work(a, n);
  const int64_t units = static_cast<int64_t>(a.segments.size()) * w.units();
  ctx.pool.parallel_for(units, grain(units, ctx.pool.size()),
                        [&](int64_t begin, int64_t end, int) { Units(w, begin, end); });
}

template <auto Units>
void recurrent_cpu(const OpContext& ctx, const GatedDeltaArgs& a) {
  const DeltaSizes n = check(a, true);
  Workspace::Scope scope(ctx.workspace);
  int64_t count = 0;
  const DeltaWork w =
      delta_work(a, n, true, scope.take<int32_t>(static_cast<int64_t>(a.segments.size())), count);
  const int64_t units = count * n.Hv * ((n.Dv + kRecurrentColumns - 1) / kRecurrentColumns);
  ctx.pool.parallel_for(units, grain(units, ctx.pool.size()),
                        [&](int64_t begin, int64_t end, int) { Units(w, begin, end); });
}

// A unit that takes all value heads of a key head computes the products of keys and queries once for them;
// with few units the threads matter more. Either way a head's arithmetic is the same.
int64_t value_heads_per_unit(int64_t units, int64_t r, int threads);

template <auto Units, auto ScratchBytes>
void chunked_cpu(const OpContext& ctx, const GatedDeltaArgs& a) {
  const DeltaSizes n = check(a, false);
  Workspace::Scope scope(ctx.workspace);
  int64_t count = 0;
  ChunkedWork w{};
  w.delta = delta_work(a, n, false, scope.take<int32_t>(static_cast<int64_t>(a.segments.size())), count);
  if (count == 0) return;
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
