// What the tests of the gated delta net on the GPU share: random layers and tokens, slots in device memory,
// and the plain recurrence in float64, which follows the error along with the value (as
// src/ops/gated_delta/test.cpp does).
#pragma once

#include <cmath>
#include <numeric>

#include "cuda/support.h"
#include "ops/gated_delta/cuda/slots.h"

namespace quire::cuda_test {

using cuda::kDeltaHead;
using bf16 = __nv_bfloat16;

inline constexpr double kEpsF32 = 1.0 / (1 << 24),
                        kEpsBf16 = 1.0 / 256;  // half an ulp, one unit of rounding to nearest

inline float to_f(bf16 x) {
  return __bfloat162float(x);
}

// One layer's parameters, on both sides.
struct GdnLayer {
  cuda::DeltaShape shape;
  std::vector<float> conv, ssm_a, dt_bias, norm;
  DeviceBuffer<float> d_conv, d_ssm_a, d_dt_bias, d_norm;

  static std::vector<float> uniform(size_t n, float lo, float hi, uint32_t seed) {
    std::mt19937 rng(seed);
    std::uniform_real_distribution<float> dist(lo, hi);
    std::vector<float> x(n);
    for (float& f : x) f = dist(rng);
    return x;
  }
  explicit GdnLayer(cuda::DeltaShape s, uint32_t seed = 7)
      : shape(s),
        conv(uniform(static_cast<size_t>(s.channels()) * cuda::kDeltaTaps, -0.6f, 0.6f, seed)),
        ssm_a(uniform(static_cast<size_t>(s.Hv), -1.5f, -0.5f, seed + 1)),
        dt_bias(uniform(static_cast<size_t>(s.Hv), -0.5f, 0.5f, seed + 2)),
        norm(uniform(kDeltaHead, 0.5f, 1.5f, seed + 3)),
        d_conv(conv),
        d_ssm_a(ssm_a),
        d_dt_bias(dt_bias),
        d_norm(norm) {}
  cuda::DeltaWeights weights() const { return {d_conv.data(), d_ssm_a.data(), d_dt_bias.data()}; }
  int key_head(int h) const { return shape.grouped ? h / (shape.Hv / shape.Hk) : h % shape.Hk; }
};

// The inputs of one token. `variant` 0 is the true one; others stand for drafts that are rejected.
struct GdnToken {
  std::vector<bf16> qkv, z;
  std::vector<float> a, b;
};

// Log decays between -20 and -1e-4, evenly on a logarithmic scale.
inline GdnToken make_token(const GdnLayer& layer, int sequence, int position, int variant) {
  std::seed_seq seed{sequence, position, variant, 99};
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> decade(std::log(1e-4f), std::log(20.0f));
  const auto values = [&](size_t n) {
    std::vector<bf16> x(n);
    for (bf16& v : x) v = __float2bfloat16(normal(rng));
    return x;
  };
  const auto Hv = static_cast<size_t>(layer.shape.Hv);
  GdnToken t{values(static_cast<size_t>(layer.shape.channels())), values(Hv * kDeltaHead), {}, {}};
  for (size_t h = 0; h < Hv; ++h) {
    const double s = std::exp(static_cast<double>(decade(rng))) / -static_cast<double>(layer.ssm_a[h]);
    t.a.push_back(static_cast<float>(s > 20 ? s : std::log(std::expm1(s))) - layer.dt_bias[h]);
    t.b.push_back(2.0f * normal(rng));
  }
  return t;
}

// Slots in slot-major memory, as the engine lays them out: all members of slot 0, then all of slot 1.
class GdnSlots {
 public:
  GdnSlots(cuda::DeltaShape s, int slots, int pending, int ring)
      : shape_(s), pending_(pending), ring_(ring), slots_(slots), memory_(static_cast<size_t>(slots) * slot_bytes()) {}

  cuda::DeltaSlots views() const {
    unsigned char* p = memory_.data();
    const auto stride = static_cast<int64_t>(slot_bytes());
    cuda::DeltaSlots v;
    v.state = {reinterpret_cast<float*>(p), stride};
    v.pending_k = {reinterpret_cast<bf16*>(p + at_k()), stride};
    v.pending_u = {reinterpret_cast<float*>(p + at_u()), stride};
    v.pending_g = {reinterpret_cast<float*>(p + at_g()), stride};
    v.conv = {reinterpret_cast<bf16*>(p + at_conv()), stride};
    v.pending = pending_;
    v.ring = ring_;
    return v;
  }
  // A whole slot, for comparing bits and for setting one up.
  std::vector<unsigned char> bytes(int slot) const {
    std::vector<unsigned char> host(slot_bytes());
    must(cudaMemcpy(host.data(), memory_.data() + slot_bytes() * static_cast<size_t>(slot), host.size(),
                    cudaMemcpyDeviceToHost),
         "slot");
    return host;
  }
  void set(int slot, const std::vector<unsigned char>& host) {
    must(cudaMemcpy(memory_.data() + slot_bytes() * static_cast<size_t>(slot), host.data(), host.size(),
                    cudaMemcpyHostToDevice),
         "slot");
  }
  template <class T>
  static std::vector<T> part(const std::vector<unsigned char>& slot, size_t at, size_t count) {
    std::vector<T> x(count);
    std::memcpy(x.data(), slot.data() + at, count * sizeof(T));
    return x;
  }
  std::vector<float> state(int slot) const { return part<float>(bytes(slot), 0, state_count()); }
  std::vector<bf16> keys(int slot) const { return part<bf16>(bytes(slot), at_k(), key_count()); }
  std::vector<bf16> conv(int slot) const { return part<bf16>(bytes(slot), at_conv(), conv_count()); }

  size_t state_count() const { return static_cast<size_t>(shape_.Hv) * kDeltaHead * kDeltaHead; }
  size_t key_count() const { return static_cast<size_t>(pending_) * shape_.Hk * kDeltaHead; }
  size_t conv_count() const { return static_cast<size_t>(ring_) * shape_.channels(); }
  size_t at_k() const { return state_count() * 4; }
  size_t at_u() const { return at_k() + round(key_count() * 2); }
  size_t at_g() const { return at_u() + round(static_cast<size_t>(pending_) * shape_.Hv * kDeltaHead * 4); }
  size_t at_conv() const { return at_g() + round(static_cast<size_t>(pending_) * shape_.Hv * 4); }
  size_t slot_bytes() const { return at_conv() + round(conv_count() * 2); }
  int pending() const { return pending_; }
  int ring() const { return ring_; }
  int count() const { return slots_; }
  bool guards_intact() const { return memory_.guards_intact(); }

 private:
  static size_t round(size_t bytes) { return (bytes + 15) / 16 * 16; }
  cuda::DeltaShape shape_;
  int pending_, ring_, slots_;
  DeviceBuffer<unsigned char> memory_;
};

// The recurrence of one sequence in float64. A column's error: (I - beta k k^T) never lengthens it, the decay
// shortens it, a step adds `unit` times the magnitudes that it adds up; steps round independently, so errors
// add in squares.
struct GdnOracle {
  static constexpr double kSigmas = 4.0;
  const GdnLayer& layer;
  std::vector<double> S;           // [Hv, Dv, Dk]
  std::vector<double> error2;      // [Hv, Dv]
  std::vector<double> o, o_error;  // [Hv, Dv] of the last token, scaled
  explicit GdnOracle(const GdnLayer& l)
      : layer(l),
        S(static_cast<size_t>(l.shape.Hv) * kDeltaHead * kDeltaHead),
        error2(static_cast<size_t>(l.shape.Hv) * kDeltaHead),
        o(error2),
        o_error(error2) {}

  // q, k [Hk, D], v [Hv, D], g, beta [Hv]
  void step(const std::vector<double>& q, const std::vector<double>& k, const std::vector<double>& v,
            const std::vector<double>& g, const std::vector<double>& beta) {
    constexpr size_t D = kDeltaHead;
    const double scale = 1.0 / std::sqrt(static_cast<double>(D));
    for (size_t h = 0; h < static_cast<size_t>(layer.shape.Hv); ++h) {
      const size_t hk = static_cast<size_t>(layer.key_head(static_cast<int>(h))) * D;
      const double decay = std::exp(g[h]);
      double q_norm = 0.0;
      for (size_t d = 0; d < D; ++d) q_norm += q[hk + d] * q[hk + d];
      for (size_t j = 0; j < D; ++j) {
        double* s = S.data() + (h * D + j) * D;
        double before = 0.0, predicted = 0.0, after = 0.0, out = 0.0;
        for (size_t d = 0; d < D; ++d) {
          s[d] *= decay;
          before += s[d] * s[d];
          predicted += s[d] * k[hk + d];
        }
        const double change = beta[h] * (v[h * D + j] - predicted);
        for (size_t d = 0; d < D; ++d) {
          s[d] += change * k[hk + d];
          after += s[d] * s[d];
          out += s[d] * q[hk + d];
        }
        const double local = beta[h] * std::abs(v[h * D + j]) + std::sqrt(before) + std::sqrt(after);
        double& e = error2[h * D + j];
        e = decay * decay * e + local * local;
        o[h * D + j] = out * scale;
        o_error[h * D + j] = kSigmas * scale * std::sqrt(q_norm) * (std::sqrt(e) + local) + 1e-30;
      }
    }
  }
  double state_error(size_t column) const { return kSigmas * std::sqrt(error2[column]) + 1e-30; }
};

// What gdn_prepare makes of a token in float64. history[i]: inputs of position - 3 + i (empty: zeros), then
// the token's.
struct GdnPrepared {
  std::vector<double> q, k, v, g, beta;
};
inline GdnPrepared prepare_oracle(const GdnLayer& layer, const std::vector<const std::vector<bf16>*>& inputs,
                                  const GdnToken& token) {
  const auto& n = layer.shape;
  const auto convolve = [&](int first, int heads, bool unit) {
    std::vector<double> y(static_cast<size_t>(heads) * kDeltaHead);
    for (int h = 0; h < heads; ++h) {
      double sum = 0.0;
      for (int d = 0; d < kDeltaHead; ++d) {
        const auto c = static_cast<size_t>(first + h * kDeltaHead + d);
        double x = 0.0;
        for (size_t i = 0; i < cuda::kDeltaTaps; ++i)
          if (inputs[i] != nullptr)
            x += static_cast<double>(layer.conv[c * cuda::kDeltaTaps + i]) * static_cast<double>(to_f((*inputs[i])[c]));
        x /= 1.0 + std::exp(-x);
        y[static_cast<size_t>(h * kDeltaHead + d)] = x;
        sum += x * x;
      }
      if (unit)
        for (int d = 0; d < kDeltaHead; ++d) y[static_cast<size_t>(h * kDeltaHead + d)] /= std::sqrt(sum + 1e-6);
    }
    return y;
  };
  GdnPrepared p{convolve(0, n.Hk, true),
                convolve(n.Hk * kDeltaHead, n.Hk, true),
                convolve(2 * n.Hk * kDeltaHead, n.Hv, false),
                {},
                {}};
  for (size_t h = 0; h < static_cast<size_t>(n.Hv); ++h) {
    const double x = static_cast<double>(token.a[h]) + static_cast<double>(layer.dt_bias[h]);
    p.g.push_back(static_cast<double>(layer.ssm_a[h]) * (x > 30 ? x : std::log1p(std::exp(x))));
    p.beta.push_back(1.0 / (1.0 + std::exp(-static_cast<double>(token.b[h]))));
  }
  return p;
}

// The largest |got - want| / bound; NaN counts as infinite.
struct Worst {
  double excess = 0.0;
  void add(double got, double want, double bound) {
    const double e = std::abs(got - want) / bound;
    excess = std::isnan(e) ? std::numeric_limits<double>::infinity() : std::max(excess, e);
  }
};

}  // namespace quire::cuda_test
