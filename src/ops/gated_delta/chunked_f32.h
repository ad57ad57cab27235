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

  void load_state(int64_t m, const float* stored) {
    float* S = states_ + m * Dk_ * Dv_;
    if (stored != nullptr) return transpose_matrix<V>(stored, Dv_, Dk_, Dk_, S, Dv_);
    for (int64_t i = 0; i < Dk_ * Dv_; i += V::kWidth) V::zero().store(S + i);
  }
  void store_state(int64_t m, float* stored) {
    transpose_matrix<V>(states_ + m * Dk_ * Dv_, Dk_, Dv_, Dv_, stored, Dk_);
  }

  void load_keys(int64_t row, int n, int64_t hk) {
    widen(static_cast<const T*>(w_.k) + row * w_.k_stride + hk * Dk_, w_.k_stride, n, keys_);
    widen(static_cast<const T*>(w_.q) + row * w_.q_stride + hk * Dk_, w_.q_stride, n, queries_);
    transpose_matrix<V>(keys_, kC, Dk_, Dk_, keys_t_, kC);
    multiply<V, false>(kC, kC / V::kWidth, Dk_, keys_, Dk_, square(keys_t_), square(kk_));
    multiply<V, false>(kC, kC / V::kWidth, Dk_, queries_, Dk_, square(keys_t_), square(qk_));
  }

  void head(int64_t row, int n, int64_t hv, int64_t m, const Decays& d) {
    const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(Dk_));
    float* S = states_ + m * Dk_ * Dv_;
    const int64_t vectors = Dv_ / V::kWidth;
    lower_triangles<V>(d, square(kk_), square(qk_), scale, M_, P_);
    multiply<V, false>(kC, vectors, Dk_, keys_, Dk_, wide(S), wide(R_));
    multiply<V, false>(kC, vectors, Dk_, queries_, Dk_, wide(S), wide(O_));
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
    solve<V>(M_, wide(R_), vectors);
    for (int i = 0; i < kC; i += 8)  // rows i .. i + 7 look at tokens up to i + 7
      multiply<V, true>(8, vectors, i + 8, P_ + i * kC, kC, wide(R_), wide(O_ + i * Dv_));
    T* o = static_cast<T*>(w_.out) + row * w_.out_stride + hv * Dv_;
    for (int i = 0; i < n; ++i)
      for (int64_t j = 0; j < Dv_; j += V::kWidth) V::load(O_ + i * Dv_ + j).store(o + i * w_.out_stride + j);
    for (int i = 0; i < kC; ++i)
      for (int64_t j = 0; j < Dv_; j += V::kWidth)
        (V::set1(d.exit[i]) * V::load(R_ + i * Dv_ + j)).store(R_ + i * Dv_ + j);
    for (int64_t i = 0; i < Dk_ * Dv_; i += V::kWidth) (V::set1(d.whole) * V::load(S + i)).store(S + i);
    multiply<V, true>(Dk_, vectors, kC, keys_t_, kC, wide(R_), wide(S));
  }

 private:
  Matrix square(float* p) const { return {p, kC, V::kWidth}; }  // [.., 64]
  Matrix wide(float* p) const { return {p, Dv_, V::kWidth}; }   // [.., Dv]

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
