// The oracle of the gated-delta-net operators: plain loops in float64, one token after the other. The chunked
// operator's reference is the recurrence too, so that the chunked algebra is tested against something else.
#include <cmath>
#include <vector>

#include "ops/gated_delta/check.h"

namespace quire::gdn {
namespace {

double silu(double x) {
  return x / (1.0 + std::exp(-x));
}

// ln(1 + e^x), without overflow.
double softplus(double x) {
  return x > 20.0 ? x : std::log1p(std::exp(x));
}

// The inputs of one segment's convolution, with the Kc - 1 inputs that precede it.
class ConvInputs {
 public:
  ConvInputs(const GdnPrepareArgs& a, const PrepareSizes& n, const Segment& s) : a_(a), n_(n), s_(s) {
    history_.assign(static_cast<size_t>((n.Kc - 1) * n.C), 0.0f);
    if (s.position == 0) return;
    const float* conv = a.cache.conv.row<float>(s.state_slot);
    std::copy(conv, conv + history_.size(), history_.begin());
  }
  // Input of token t of the segment; t >= -(Kc - 1).
  float at(int64_t t, int64_t channel) const {
    if (t < 0) return history_[static_cast<size_t>((n_.Kc - 1 + t) * n_.C + channel)];
    return load_float(a_.qkv, (s_.row + t) * a_.qkv.stride[0] + channel);
  }
  // Leaves the Kc - 1 inputs up to token t in a slot.
  void keep(int64_t t, int32_t slot) const {
    float* conv = a_.cache.conv.row<float>(slot);
    for (int64_t i = 0; i < n_.Kc - 1; ++i)
      for (int64_t c = 0; c < n_.C; ++c) conv[i * n_.C + c] = at(t - (n_.Kc - 2) + i, c);
  }

 private:
  const GdnPrepareArgs& a_;
  const PrepareSizes& n_;
  const Segment& s_;
  std::vector<float> history_;
};

// Channels [first, first + heads * D) of token t, after convolution and SiLU, to row `row` of `out`.
void prepare_heads(const GdnPrepareArgs& a, const PrepareSizes& n, const ConvInputs& in, int64_t t,
                   int64_t row, int64_t first, const Tensor& out, bool l2_norm) {
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
      store_float(out, row * out.stride[0] + h * D + d,
                  static_cast<float>(y[static_cast<size_t>(d)] * scale));
  }
}

// The recurrence over one segment and value head: float64 arithmetic on a state that is rounded to float32
// after every row, so that the bits do not depend on how rows are cut into segments.
void recurrence(const GatedDeltaArgs& a, const DeltaSizes& n, const Segment& s, int64_t hv) {
  const int64_t hk = n.key_head(a.heads, hv), Dk = n.Dk, Dv = n.Dv;
  const auto stored = [&](int32_t slot) { return a.state.row<float>(slot) + hv * Dv * Dk; };
  std::vector<float> S(static_cast<size_t>(Dv * Dk), 0.0f);
  std::vector<double> q(static_cast<size_t>(Dk)), k(q);
  if (s.position > 0) std::copy(stored(s.state_slot), stored(s.state_slot) + Dv * Dk, S.begin());
  for (int64_t row = s.row; row < s.row + s.count; ++row) {
    for (int64_t d = 0; d < Dk; ++d) {
      q[static_cast<size_t>(d)] = static_cast<double>(load_float(a.q, row * a.q.stride[0] + hk * Dk + d));
      k[static_cast<size_t>(d)] = static_cast<double>(load_float(a.k, row * a.k.stride[0] + hk * Dk + d));
    }
    const double decay = std::exp(static_cast<double>(load_float(a.g, row * a.g.stride[0] + hv)));
    const double beta = static_cast<double>(load_float(a.beta, row * a.beta.stride[0] + hv));
    for (int64_t j = 0; j < Dv; ++j) {
      float* column = S.data() + j * Dk;
      double predicted = 0.0, out = 0.0;
      for (int64_t d = 0; d < Dk; ++d)
        predicted += decay * static_cast<double>(column[d]) * k[static_cast<size_t>(d)];
      const double v = static_cast<double>(load_float(a.v, row * a.v.stride[0] + hv * Dv + j));
      const double change = beta * (v - predicted);
      for (int64_t d = 0; d < Dk; ++d) {
        const double x = decay * static_cast<double>(column[d]) + change * k[static_cast<size_t>(d)];
        column[d] = static_cast<float>(x);
        out += x * q[static_cast<size_t>(d)];
      }
      store_float(a.out, row * a.out.stride[0] + hv * Dv + j,
                  static_cast<float>(out / std::sqrt(static_cast<double>(Dk))));
    }
    const bool by_token = s.decode && !a.token_slots.empty();
    const bool last = row + 1 == s.row + s.count;
    const int32_t slot = by_token ? a.token_slots[static_cast<size_t>(row)] : last ? s.state_slot : -1;
    if (slot >= 0) std::copy(S.begin(), S.end(), stored(slot));
  }
}

void all_recurrences(const OpContext& ctx, const GatedDeltaArgs& a, bool decode) {
  const DeltaSizes n = check(a, decode);
  for (const Segment& s : a.segments) {
    if (s.decode != decode || s.count == 0) continue;
    ctx.pool.parallel_for(n.Hv, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t hv = begin; hv < end; ++hv) recurrence(a, n, s, hv);
    });
  }
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
          a.g.row<float>(row)[h] =
              static_cast<float>(static_cast<double>(a.ssm_a.as<float>()[h]) * softplus(x));
          a.beta.row<float>(row)[h] = static_cast<float>(1.0 / (1.0 + std::exp(-b)));
        }
      }
    });
    if (!s.decode || a.token_slots.empty()) {
      in.keep(s.count - 1, s.state_slot);
      continue;
    }
    for (int64_t t = 0; t < s.count; ++t)
      if (const int32_t slot = a.token_slots[static_cast<size_t>(s.row + t)]; slot >= 0) in.keep(t, slot);
  }
}

void chunked_reference(const OpContext& ctx, const GatedDeltaArgs& a) {
  all_recurrences(ctx, a, false);
}

void recurrent_reference(const OpContext& ctx, const GatedDeltaArgs& a) {
  all_recurrences(ctx, a, true);
}

}  // namespace quire::gdn
