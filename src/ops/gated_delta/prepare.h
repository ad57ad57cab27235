// gdn_prepare, written once for both vector widths. Include after ops/simd/vec_*.h and ops/simd/math.h.
// A unit is one head of q, k or v over all rows of a segment: its channels' history is read before it is
// overwritten, because nobody else touches those channels. Tokens go in blocks through a window of float32
// inputs [Kc - 1 + block, D]; the L2 norm's sum runs over one head's row in a fixed order.
#pragma once

#include "ops/gated_delta/kernels.h"
#include "ops/op.h"
#include "ops/simd/prefetch.h"

namespace quire::gdn {
namespace {

constexpr int kBlock = 16;  // tokens per window: 19 x 128 floats are 10 KB

template <class V, class T>
inline V load(const T* p, int64_t n) {
  return n >= V::kWidth ? V::load(p) : V::load(p, static_cast<int>(n));
}
template <class V, class T>
inline void store(V v, T* p, int64_t n) {
  n >= V::kWidth ? v.store(p) : v.store(p, static_cast<int>(n));
}

struct HeadScratch {
  static constexpr int64_t kStride = kMaxHeadDim;
  alignas(64) float window[(kMaxTaps - 1 + kBlock) * kStride];
  alignas(64) float taps[kMaxTaps * kStride];  // [Kc][D]: the weights by tap
  alignas(64) float y[kBlock * kStride];
  float* input(int64_t i) { return window + i * kStride; }
};

template <class V>
void load_taps(const float* weight, int64_t Kc, int64_t D, HeadScratch& m) {
  int64_t d = 0;
  if (Kc == 4) {
    for (; d + V::kWidth <= D; d += V::kWidth) {
      V tap[4];
      load_columns4(weight + d * 4, tap);
      for (int i = 0; i < 4; ++i) tap[i].store(m.taps + i * HeadScratch::kStride + d);
    }
  }
  for (; d < D; ++d)
    for (int64_t i = 0; i < Kc; ++i) m.taps[i * HeadScratch::kStride + d] = weight[d * Kc + i];
}

// Convolution and SiLU of `count` tokens of the window, to m.y. The tail's lanes beyond D compute on whatever
// the buffers hold there and are never stored outside. Meanwhile prefetch(t, d) is called for every vector.
template <class V, int Taps, class Prefetch>
inline void convolve(HeadScratch& m, int64_t Kc, int64_t D, int count, Prefetch&& prefetch) {
  const int64_t taps = Taps > 0 ? Taps : Kc;
  for (int64_t d = 0; d < D; d += V::kWidth) {
    V w[Taps > 0 ? Taps : kMaxTaps];
    for (int64_t i = 0; i < taps; ++i) w[i] = V::load(m.taps + i * HeadScratch::kStride + d);
    for (int t = 0; t < count; ++t) {
      prefetch(t, d);
      V x = w[0] * V::load(m.input(t) + d);
      for (int64_t i = 1; i < taps; ++i) x = fma(w[i], V::load(m.input(t + i) + d), x);
      simd::silu(x).store(m.y + t * HeadScratch::kStride + d);
    }
  }
}

template <class V>
inline float l2_scale(const float* y, int64_t D) {
  V sum = V::zero();
  for (int64_t d = 0; d < D; d += V::kWidth) {
    const V x = load<V>(y + d, D - d);
    sum = fma(x, x, sum);
  }
  return 1.0f / __builtin_sqrtf(sum.sum() + 1e-6f);
}

template <class V>
void copy_row(const float* from, float* to, int64_t D) {
  for (int64_t d = 0; d < D; d += V::kWidth) store(load<V>(from + d, D - d), to + d, D - d);
}

template <class V, class T>
void prepare_head(const PrepareWork& w, const Segment& s, int64_t channel, int64_t D, T* out, int64_t out_stride,
                  bool l2_norm) {
  HeadScratch m;
  const int64_t past = w.Kc - 1;
  T* ring = static_cast<T*>(w.conv) + s.state_slot * w.conv_slot_stride + channel;
  const auto kept = [&](int64_t position) { return ring + (position & (w.R - 1)) * w.C; };
  load_taps<V>(w.conv_weight + channel * w.Kc, w.Kc, D, m);
  for (int64_t i = 0; i < past; ++i) {
    const int64_t position = s.position - past + i;
    for (int64_t d = 0; d < D; d += V::kWidth)
      (position >= 0 ? load<V>(kept(position) + d, D - d) : V::zero()).store(m.input(i) + d);
  }
  const auto input = [&](int64_t t) { return static_cast<const T*>(w.qkv) + (s.row + t) * w.qkv_stride + channel; };
  for (int32_t t0 = 0; t0 < s.count; t0 += kBlock) {
    const int count = s.count - t0 < kBlock ? s.count - t0 : kBlock;
    for (int t = 0; t < count; ++t) {
      const T* x = input(t0 + t);
      for (int64_t d = 0; d < D; d += V::kWidth) load<V>(x + d, D - d).store(m.input(past + t) + d);
    }
    // A head's rows lie all channels apart, a page or more.
    const auto prefetch = [&](int t, int64_t d) {
      if (t0 + kBlock + t < s.count) simd::prefetch_read(input(t0 + kBlock + t) + d);
      simd::prefetch_write(out + (s.row + t0 + t) * out_stride + d);
    };
    w.Kc == 4 ? convolve<V, 4>(m, w.Kc, D, count, prefetch) : convolve<V, 0>(m, w.Kc, D, count, prefetch);
    for (int t = 0; t < count; ++t) {
      const float* y = m.y + t * HeadScratch::kStride;
      const V scale = V::set1(l2_norm ? l2_scale<V>(y, D) : 1.0f);
      T* to = out + (s.row + t0 + t) * out_stride;
      for (int64_t d = 0; d < D; d += V::kWidth) store(load<V>(y + d, D - d) * scale, to + d, D - d);
    }
    for (int64_t i = 0; i < past; ++i) copy_row<V>(m.input(count + i), m.input(i), D);
  }
  for (int64_t t = s.count > w.R ? s.count - w.R : 0; t < s.count; ++t) {
    T* to = kept(s.position + t);
    for (int64_t d = 0; d < D; d += V::kWidth) store(load<V>(input(t) + d, D - d), to + d, D - d);
  }
}

template <class V>
inline V load_gate(const void* p, bool bf16, int64_t at, int64_t n) {
  return bf16 ? load<V>(static_cast<const uint16_t*>(p) + at, n) : load<V>(static_cast<const float*>(p) + at, n);
}

template <class V>
void prepare_gates(const PrepareWork& w, const Segment& s) {
  for (int64_t row = s.row; row < s.row + s.count; ++row) {
    for (int64_t h = 0; h < w.Hv; h += V::kWidth) {
      const int64_t n = w.Hv - h;
      const V x = load_gate<V>(w.a, w.a_bf16, row * w.a_stride + h, n) + load<V>(w.dt_bias + h, n);
      store(load<V>(w.ssm_a + h, n) * simd::softplus(x), w.g + row * w.g_stride + h, n);
      const V b = load_gate<V>(w.b, w.b_bf16, row * w.b_stride + h, n);
      store(simd::sigmoid(b), w.beta + row * w.beta_stride + h, n);
    }
  }
}

template <class V, class T>
void prepare_unit(const PrepareWork& w, const Segment& s, int64_t unit) {
  const int64_t keys = w.Hk * w.Dk;
  if (unit < w.Hk)
    prepare_head<V, T>(w, s, unit * w.Dk, w.Dk, static_cast<T*>(w.q) + unit * w.Dk, w.q_stride, true);
  else if ((unit -= w.Hk) < w.Hk)
    prepare_head<V, T>(w, s, keys + unit * w.Dk, w.Dk, static_cast<T*>(w.k) + unit * w.Dk, w.k_stride, true);
  else if ((unit -= w.Hk) < w.Hv)
    prepare_head<V, T>(w, s, 2 * keys + unit * w.Dv, w.Dv, static_cast<T*>(w.v) + unit * w.Dv, w.v_stride, false);
  else
    prepare_gates<V>(w, s);
}

template <class V>
void prepare_units(const PrepareWork& w, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    const Segment& s = w.segments[i / w.units()];
    if (s.count == 0) continue;
    w.bf16 ? prepare_unit<V, uint16_t>(w, s, i % w.units()) : prepare_unit<V, float>(w, s, i % w.units());
  }
}

}  // namespace
}  // namespace quire::gdn
