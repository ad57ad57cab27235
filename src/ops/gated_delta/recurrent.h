// The recurrent form, written once for both vector widths. Include after ops/simd/vec_*.h and
// ops/simd/math.h.
//
// A value column (Dk floats, contiguous) is updated from two dot products, both taken with the state before
// the step, so that it is read once:
//     p = S k, r = S q;   e = beta (v - e^g p);   S <- e^g S + e k;   out = Dk^(-1/2) (e^g r + e (k q))
// Memory bound for one row: 8 Dv Dk bytes for 7 Dv Dk operations. Rows of a segment follow each other over a
// tile of columns that stays in the L1 cache, so the state is read and written once for all of them. Columns
// do not depend on each other; a column's sums run over Dk only, whatever tile it stands in.
#pragma once

#include "ops/gated_delta/kernels.h"
#include "ops/op.h"

namespace quire::gdn {
namespace {

constexpr int kTileColumns = 16;
constexpr int64_t kPrefetch =
    2048;  // floats ahead; the hardware stops at every page, and a column is an eighth of one

// What a step needs besides the state, converted to float32.
struct StepInputs {
  alignas(64) float k[kMaxHeadDim];
  alignas(64) float q[kMaxHeadDim];  // times Dk^(-1/2)
  alignas(64) float v[kTileColumns];
  float decay, beta, kq;
};

template <class V, class T>
void load_step(const DeltaWork& w, int64_t row, int64_t hv, int64_t column, int columns, StepInputs& in) {
  const int64_t hk = w.key_head(hv);
  const T* k = static_cast<const T*>(w.k) + row * w.k_stride + hk * w.Dk;
  const T* q = static_cast<const T*>(w.q) + row * w.q_stride + hk * w.Dk;
  const T* v = static_cast<const T*>(w.v) + row * w.v_stride + hv * w.Dv + column;
  const V scale = V::set1(1.0f / __builtin_sqrtf(static_cast<float>(w.Dk)));
  V kq = V::zero();
  for (int64_t d = 0; d < w.Dk; d += V::kWidth) {
    const V kd = V::load(k + d), qd = V::load(q + d) * scale;
    kd.store(in.k + d);
    qd.store(in.q + d);
    kq = fma(kd, qd, kq);
  }
  in.kq = kq.sum();
  for (int j = 0; j < columns; j += V::kWidth) {
    const int n = columns - j < V::kWidth ? columns - j : V::kWidth;
    (n == V::kWidth ? V::load(v + j) : V::load(v + j, n)).store(in.v + j);
  }
  alignas(64) float decay[V::kWidth];
  simd::exp(V::set1(w.g[row * w.g_stride + hv])).store(decay);
  in.decay = decay[0];
  in.beta = w.beta[row * w.beta_stride + hv];
}

// One step for N <= 4 columns: from `src` to `dst` (which may be the same), results to out[0..N).
template <class V, int N>
inline void step_columns(const StepInputs& in, int64_t Dk, const float* src, float* dst, const float* v,
                         float* out) {
  V p[4] = {V::zero(), V::zero(), V::zero(), V::zero()}, r[4] = {V::zero(), V::zero(), V::zero(), V::zero()};
  for (int64_t d = 0; d < Dk; d += V::kWidth) {
    const V k = V::load(in.k + d), q = V::load(in.q + d);
    for (int j = 0; j < N; ++j) {
      const V s = V::load(src + j * Dk + d);
      V::prefetch(src + kPrefetch + j * Dk + d);
      p[j] = fma(s, k, p[j]);
      r[j] = fma(s, q, r[j]);
    }
  }
  float ps[4], rs[4], e[4];
  sum4(p[0], p[1], p[2], p[3], ps);
  sum4(r[0], r[1], r[2], r[3], rs);
  for (int j = 0; j < N; ++j) {
    e[j] = in.beta * (v[j] - in.decay * ps[j]);
    out[j] = in.decay * rs[j] + e[j] * in.kq;
  }
  const V decay = V::set1(in.decay);
  for (int64_t d = 0; d < Dk; d += V::kWidth) {
    const V k = V::load(in.k + d);
    for (int j = 0; j < N; ++j)
      fma(V::set1(e[j]), k, decay * V::load(src + j * Dk + d)).store(dst + j * Dk + d);
  }
}

// Rows of one segment over columns [column, column + columns), columns <= kTileColumns.
template <class V, class T>
void recurrent_tile(const DeltaWork& w, const Segment& s, int64_t hv, int64_t column, int columns) {
  alignas(64) float tile[kTileColumns * kMaxHeadDim];
  const int64_t size = columns * w.Dk;
  const auto stored = [&](int32_t slot) { return w.state + ((slot * w.Hv + hv) * w.Dv + column) * w.Dk; };
  const float* src = stored(s.state_slot);
  if (s.position == 0) {
    for (int64_t i = 0; i < size; i += V::kWidth) V::zero().store(tile + i);
    src = tile;
  }
  StepInputs in;
  alignas(64) float result[kTileColumns];
  for (int32_t t = 0; t < s.count; ++t) {
    const int64_t row = s.row + t;
    load_step<V, T>(w, row, hv, column, columns, in);
    int32_t slot = t + 1 == s.count ? s.state_slot : -1;
    if (w.token_slots != nullptr) slot = w.token_slots[row];
    float* dst = slot >= 0 ? stored(slot) : tile;
    int j = 0;
    for (; j + 4 <= columns; j += 4)
      step_columns<V, 4>(in, w.Dk, src + j * w.Dk, dst + j * w.Dk, in.v + j, result + j);
    for (; j < columns; ++j)
      step_columns<V, 1>(in, w.Dk, src + j * w.Dk, dst + j * w.Dk, in.v + j, result + j);
    T* out = static_cast<T*>(w.out) + row * w.out_stride + hv * w.Dv + column;
    for (j = 0; j < columns; j += V::kWidth) {
      const int n = columns - j < V::kWidth ? columns - j : V::kWidth;
      const V o = V::load(result + j);
      n == V::kWidth ? o.store(out + j) : o.store(out + j, n);
    }
    src = dst;
  }
}

template <class V>
void recurrent_units(const DeltaWork& w, int64_t begin, int64_t end) {
  const int64_t blocks = (w.Dv + kRecurrentColumns - 1) / kRecurrentColumns;
  for (int64_t unit = begin; unit < end; ++unit) {
    const Segment& s = w.segments[w.chosen[unit / (w.Hv * blocks)]];
    const int64_t hv = unit / blocks % w.Hv, first = unit % blocks * kRecurrentColumns;
    const int64_t last = first + kRecurrentColumns < w.Dv ? first + kRecurrentColumns : w.Dv;
    for (int64_t c = first; c < last; c += kTileColumns) {
      const int columns = static_cast<int>(last - c < kTileColumns ? last - c : kTileColumns);
      w.bf16 ? recurrent_tile<V, uint16_t>(w, s, hv, c, columns)
             : recurrent_tile<V, float>(w, s, hv, c, columns);
    }
  }
}

}  // namespace
}  // namespace quire::gdn
