// The chunked form in float32 throughout, for CPUs without AMX and for sizes that its tiles do not take.
#pragma once

#include "ops/gated_delta/chunk.h"

namespace quire::gdn {
namespace {

// T: the activations' bits.
template <class V, class T>
class ChunkedF32 {
 public:
  ChunkedF32(const ChunkedWork& w, std::byte* scratch) : w_(w.delta), Dk_(w.delta.Dk), Dv_(w.delta.Dv) {
    float* at = reinterpret_cast<float*>(scratch);
    const auto take = [&](int64_t n) { return (at += n) - n; };
    keys_ = take(kC * Dk_);
    queries_ = take(kC * Dk_);
    keys_t_ = take(Dk_ * kC);
    kk_ = take(kC * kC);
    qk_ = take(kC * kC);
    M_ = take(kC * kC);
    P_ = take(kC * kC);
    R_ = take(kC * Dv_);
    O_ = take(kC * Dv_);
    states_ = at;
  }

  float* state(int64_t m) { return states_ + m * Dk_ * Dv_; }

  void load_keys(int64_t row, int n, int64_t hk) {
    widen(static_cast<const T*>(w_.k) + row * w_.k_stride + hk * Dk_, w_.k_stride, n, keys_);
    widen(static_cast<const T*>(w_.q) + row * w_.q_stride + hk * Dk_, w_.q_stride, n, queries_);
    transpose_matrix<V>(keys_, kC, Dk_, Dk_, keys_t_, kC);
    multiply<V, false>(kC, kC, Dk_, keys_, Dk_, keys_t_, kC, kk_, kC);
    multiply<V, false>(kC, kC, Dk_, queries_, Dk_, keys_t_, kC, qk_, kC);
  }

  void head(int64_t row, int n, int64_t hv, int64_t m, const Decays& d) {
    const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(Dk_));
    float* S = state(m);
    lower_triangles<V>(d, kk_, qk_, scale, M_, P_);
    multiply<V, false>(kC, Dv_, Dk_, keys_, Dk_, S, Dv_, R_, Dv_);
    multiply<V, false>(kC, Dv_, Dk_, queries_, Dk_, S, Dv_, O_, Dv_);
    const T* v = static_cast<const T*>(w_.v) + row * w_.v_stride + hv * Dv_;
    for (int i = 0; i < kC; ++i) {
      const V entry = V::set1(d.entry[i]), beta = V::set1(d.beta[i]), out = V::set1(scale * d.entry[i]);
      for (int64_t j = 0; j < Dv_; j += V::kWidth) {
        float *r = R_ + i * Dv_ + j, *o = O_ + i * Dv_ + j;
        const V value = i < n ? V::load(v + i * w_.v_stride + j) : V::zero();
        (beta * fnma(entry, V::load(r), value)).store(r);
        (out * V::load(o)).store(o);
      }
    }
    solve<V>(M_, R_, Dv_);
    for (int i = 0; i < kC; i += 8)  // rows i .. i + 7 look at tokens up to i + 7
      multiply<V, true>(8, Dv_, i + 8, P_ + i * kC, kC, R_, Dv_, O_ + i * Dv_, Dv_);
    T* o = static_cast<T*>(w_.out) + row * w_.out_stride + hv * Dv_;
    for (int i = 0; i < n; ++i)
      for (int64_t j = 0; j < Dv_; j += V::kWidth) V::load(O_ + i * Dv_ + j).store(o + i * w_.out_stride + j);
    for (int i = 0; i < kC; ++i)
      for (int64_t j = 0; j < Dv_; j += V::kWidth)
        (V::set1(d.exit[i]) * V::load(R_ + i * Dv_ + j)).store(R_ + i * Dv_ + j);
    for (int64_t i = 0; i < Dk_ * Dv_; i += V::kWidth) (V::set1(d.whole) * V::load(S + i)).store(S + i);
    multiply<V, true>(Dk_, Dv_, kC, keys_t_, kC, R_, Dv_, S, Dv_);
  }

 private:
  // Rows of activations to float32, zeros after the n-th.
  void widen(const T* from, int64_t stride, int n, float* to) {
    for (int i = 0; i < kC; ++i)
      for (int64_t d = 0; d < Dk_; d += V::kWidth)
        (i < n ? V::load(from + i * stride + d) : V::zero()).store(to + i * Dk_ + d);
  }

  const DeltaWork& w_;
  int64_t Dk_, Dv_;
  float *keys_, *queries_, *keys_t_, *kk_, *qk_, *M_, *P_, *R_, *O_, *states_;
};

template <class V>
void chunked_f32_units(const ChunkedWork& w, int64_t begin, int64_t end, std::byte* scratch) {
  ChunkedF32<V, uint16_t> narrow(w, scratch);
  ChunkedF32<V, float> full(w, scratch);
  for (int64_t unit = begin; unit < end; ++unit)
    w.delta.bf16 ? chunked_unit<V>(w, narrow, unit) : chunked_unit<V>(w, full, unit);
}

}  // namespace
}  // namespace quire::gdn
