// The oracle of the gated-delta-net operators: plain loops in float64, one token after the other. The chunked
// operator's reference is the recurrence too, so that the chunked algebra is tested against something else.
#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/gated_delta/check.h"
#include "ops/gated_delta/launch.h"

namespace quire::gdn {
namespace {

double silu(double x) {
  return x / (1.0 + std::exp(-x));
}

// ln(1 + e^x), without overflow.
double softplus(double x) {
  return x > 20.0 ? x : std::log1p(std::exp(x));
}

// The inputs of one segment's convolution: its rows, and before them what its slot's ring holds.
class ConvInputs {
 public:
  ConvInputs(const GdnPrepareArgs& a, const PrepareSizes& n, const Segment& s) : a_(a), n_(n), s_(s) {
    for (int64_t t = 1 - n.Kc; t < 0; ++t)
      for (int64_t c = 0; c < n.C; ++c)
        history_.push_back(s.position + t < 0 ? 0.0f : load_float(a.cache.conv, kept(s.position + t, c)));
  }
  // Input of token t of the segment; t >= -(Kc - 1).
  float at(int64_t t, int64_t channel) const {
    if (t < 0) return history_[static_cast<size_t>((n_.Kc - 1 + t) * n_.C + channel)];
    return load_float(a_.qkv, (s_.row + t) * a_.qkv.stride[0] + channel);
  }
  // Leaves the inputs of the last R tokens in the ring.
  void keep() const {
    for (int64_t t = std::max<int64_t>(0, s_.count - n_.R); t < s_.count; ++t)
      for (int64_t c = 0; c < n_.C; ++c) store_float(a_.cache.conv, kept(s_.position + t, c), at(t, c));
  }

 private:
  // The element of the ring that belongs to a position.
  int64_t kept(int64_t position, int64_t channel) const {
    return s_.state_slot * a_.cache.conv.stride[0] + position % n_.R * n_.C + channel;
  }

  const GdnPrepareArgs& a_;
  const PrepareSizes& n_;
  const Segment& s_;
  std::vector<float> history_;
};

// Channels [first, first + heads * D) of token t, after convolution and SiLU, to row `row` of `out`.
void prepare_heads(const GdnPrepareArgs& a, const PrepareSizes& n, const ConvInputs& in, int64_t t, int64_t row,
                   int64_t first, const Tensor& out, bool l2_norm) {
  const int64_t heads = out.dim(1), D = out.dim(2);
  const float* weight = a.conv_weight.as<float>();
  std::vector<double> y(static_cast<size_t>(D));
  for (int64_t h = 0; h < heads; ++h) {
    double sum = 0.0;
    for (int64_t d = 0; d < D; ++d) {
      const int64_t c = first + h * D + d;
      double x = 0.0;
      for (int64_t i = 0; i < n.Kc; ++i)
        x += static_cast<double>(weight[c * n.Kc + i]) * static_cast<double>(in.at(t - (n.Kc - 1) + i, c));
      x = silu(x);
      y[static_cast<size_t>(d)] = x;
      sum += x * x;
    }
    const double scale = l2_norm ? 1.0 / std::sqrt(sum + 1e-6) : 1.0;
    for (int64_t d = 0; d < D; ++d)
      store_float(out, row * out.stride[0] + h * D + d, static_cast<float>(y[static_cast<size_t>(d)] * scale));
  }
}

// A value head's state S, transposed as it is stored: float64, rounded to float32 where it is written.
class HeadState {
 public:
  HeadState(const GatedDeltaArgs& a, const DeltaSizes& n, const Segment& s, int64_t hv)
      : Dk_(n.Dk),
        Dv_(n.Dv),
        stored_(a.cache.state.row<float>(s.state_slot) + hv * n.Dv * n.Dk),
        S_(static_cast<size_t>(n.Dv * n.Dk)) {}

  void load() { std::copy(stored_, stored_ + S_.size(), S_.begin()); }
  void store() const {
    std::transform(S_.begin(), S_.end(), stored_, [](double x) { return static_cast<float>(x); });
  }
  void round() {
    for (double& x : S_) x = static_cast<double>(static_cast<float>(x));
  }
  void decay(double g) {
    for (double& x : S_) x *= std::exp(g);
  }
  double dot(int64_t column, const std::vector<double>& x) const {
    double sum = 0.0;
    for (int64_t d = 0; d < Dk_; ++d) sum += S_[static_cast<size_t>(column * Dk_ + d)] * x[static_cast<size_t>(d)];
    return sum;
  }
  void add(int64_t column, double u, const std::vector<double>& k) {
    for (int64_t d = 0; d < Dk_; ++d) S_[static_cast<size_t>(column * Dk_ + d)] += u * k[static_cast<size_t>(d)];
  }

 private:
  int64_t Dk_, Dv_;
  float* stored_;
  std::vector<double> S_;
};

// D elements from `at` on, in float64.
std::vector<double> head_of(const Tensor& t, int64_t at, int64_t D) {
  std::vector<double> x(static_cast<size_t>(D));
  for (int64_t d = 0; d < D; ++d) x[static_cast<size_t>(d)] = static_cast<double>(load_float(t, at + d));
  return x;
}

// One row of the recurrence, one value head. `u` receives what the row adds to S: it is rounded to float32,
// and so is what is added.
void run_row(const GatedDeltaArgs& a, const DeltaSizes& n, int64_t hv, int64_t row, HeadState& S, float* u) {
  const int64_t hk = n.key_head(a.heads, hv), Dk = n.Dk, Dv = n.Dv;
  const std::vector<double> q = head_of(a.q, row * a.q.stride[0] + hk * Dk, Dk);
  const std::vector<double> k = head_of(a.k, row * a.k.stride[0] + hk * Dk, Dk);
  const double beta = static_cast<double>(load_float(a.beta, row * a.beta.stride[0] + hv));
  S.decay(static_cast<double>(load_float(a.g, row * a.g.stride[0] + hv)));
  for (int64_t j = 0; j < Dv; ++j) {
    const double v = static_cast<double>(load_float(a.v, row * a.v.stride[0] + hv * Dv + j));
    u[j] = static_cast<float>(beta * (v - S.dot(j, k)));
    S.add(j, static_cast<double>(u[j]), k);
    store_float(a.out, row * a.out.stride[0] + hv * Dv + j,
                static_cast<float>(S.dot(j, q) / std::sqrt(static_cast<double>(Dk))));
  }
}

void chunked_head(const GatedDeltaArgs& a, const DeltaSizes& n, const Segment& s, int64_t hv) {
  HeadState S(a, n, s, hv);
  std::vector<float> u(static_cast<size_t>(n.Dv));
  if (s.position > 0) S.load();
  for (int64_t row = s.row; row < s.row + s.count; ++row) {
    run_row(a, n, hv, row, S, u.data());
    S.round();  // so that the bits do not depend on how rows are cut into segments
  }
  S.store();
}

// Runs through all tokens since the anchor, first those that were pending. Writing the keys and decays of
// the new ones is left to append_pending().
void recurrent_head(const GatedDeltaArgs& a, const DeltaSizes& n, const Segment& s, int64_t hv) {
  const int64_t hk = n.key_head(a.heads, hv), end = s.position + s.count, settled = anchor_after_decode(s);
  const auto pending = [&](const Tensor& t, int64_t token, int64_t head, int64_t width) {
    return s.state_slot * t.stride[0] + token * t.stride[1] + head * width;
  };
  HeadState S(a, n, s, hv);
  if (s.anchor > 0) S.load();
  std::vector<float> u(static_cast<size_t>((end - s.anchor) * n.Dv));
  for (int64_t t = s.anchor; t < end; ++t) {
    float* ut = u.data() + (t - s.anchor) * n.Dv;
    if (t < s.position) {
      const int64_t i = t - s.anchor;
      const float* old = a.cache.pending_u.as<float>() + pending(a.cache.pending_u, i, hv, n.Dv);
      std::copy(old, old + n.Dv, ut);
      S.decay(static_cast<double>(a.cache.pending_g.as<float>()[pending(a.cache.pending_g, i, hv, 1)]));
      const std::vector<double> k = head_of(a.cache.pending_k, pending(a.cache.pending_k, i, hk, n.Dk), n.Dk);
      for (int64_t j = 0; j < n.Dv; ++j) S.add(j, static_cast<double>(ut[j]), k);
    } else {
      run_row(a, n, hv, s.row + (t - s.position), S, ut);
    }
    if ((t + 1) % kPendingTokens != 0) continue;
    S.round();
    if (t + 1 <= settled) S.store();
  }
  for (int64_t t = settled; t < end; ++t)
    std::copy_n(u.data() + (t - s.anchor) * n.Dv, n.Dv,
                a.cache.pending_u.as<float>() + pending(a.cache.pending_u, t - settled, hv, n.Dv));
}

}  // namespace

void prepare_reference(const OpContext& ctx, const GdnPrepareArgs& a) {
  const PrepareSizes n = check(a);
  for (const Segment& s : a.segments) {
    if (s.count == 0) continue;
    const ConvInputs in(a, n, s);
    ctx.pool.parallel_for(s.count, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t t = begin; t < end; ++t) {
        const int64_t row = s.row + t;
        prepare_heads(a, n, in, t, row, 0, a.q, true);
        prepare_heads(a, n, in, t, row, n.Hk * n.Dk, a.k, true);
        prepare_heads(a, n, in, t, row, 2 * n.Hk * n.Dk, a.v, false);
        for (int64_t h = 0; h < n.Hv; ++h) {
          const double x = static_cast<double>(load_float(a.a, row * a.a.stride[0] + h)) +
                           static_cast<double>(a.dt_bias.as<float>()[h]);
          const double b = static_cast<double>(load_float(a.b, row * a.b.stride[0] + h));
          a.g.row<float>(row)[h] = static_cast<float>(static_cast<double>(a.ssm_a.as<float>()[h]) * softplus(x));
          a.beta.row<float>(row)[h] = static_cast<float>(1.0 / (1.0 + std::exp(-b)));
        }
      }
    });
    in.keep();
  }
}

void chunked_reference(const OpContext& ctx, const GatedDeltaArgs& a) {
  const DeltaSizes n = check(a, false);
  for (const Segment& s : a.segments.prompts()) {
    if (s.count == 0) continue;
    ctx.pool.parallel_for(n.Hv, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t hv = begin; hv < end; ++hv) chunked_head(a, n, s, hv);
    });
  }
}

void recurrent_reference(const OpContext& ctx, const GatedDeltaArgs& a) {
  const DeltaSizes n = check(a, true);
  for (const Segment& s : a.segments.decoding()) {
    if (s.count == 0) continue;
    ctx.pool.parallel_for(n.Hv, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t hv = begin; hv < end; ++hv) recurrent_head(a, n, s, hv);
    });
    append_pending(delta_work(a, n, a.segments.decoding()), s);
  }
}

}  // namespace quire::gdn
