#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace quire {
namespace {

// The ramp between interpolated (1) and original (0) frequencies.
struct YarnRamp {
  double lo, hi;
  YarnRamp(const RopeSpec& c) {  // NOLINT(google-explicit-constructor)
    const auto corr = [&](double beta) {
      return c.n_rot * std::log(static_cast<double>(c.original_context) / (beta * 2.0 * std::numbers::pi)) /
             (2.0 * std::log(static_cast<double>(c.freq_base)));
    };
    const double fast = corr(static_cast<double>(c.beta_fast)), slow = corr(static_cast<double>(c.beta_slow));
    lo = std::max(0.0, c.exact_yarn ? fast : std::floor(fast));
    hi = std::min(c.n_rot - 1.0, c.exact_yarn ? slow : std::ceil(slow));
  }
  double original(int j) const { return 1.0 - std::clamp((j - lo) / std::max(0.001, hi - lo), 0.0, 1.0); }
};

}  // namespace

RopeTable make_rope_table(const RopeSpec& c, std::span<const float> divisors) {
  RopeTable t;
  const YarnRamp ramp(c);
  const double factor = c.factor;
  for (int j = 0; j < c.n_rot / 2; ++j) {
    double f = std::pow(static_cast<double>(c.freq_base), -2.0 * j / c.n_rot);
    if (!divisors.empty()) f /= static_cast<double>(divisors[static_cast<size_t>(j)]);
    if (c.scaling == RopeSpec::Scaling::kLinear) f /= factor;
    if (c.scaling == RopeSpec::Scaling::kYarn) {
      const double keep = ramp.original(j) * static_cast<double>(c.extrapolation);
      f = f / factor * (1.0 - keep) + f * keep;
    }
    t.inv_freq.push_back(static_cast<float>(f));
  }
  t.magnitude = c.attn_factor;
  // Without any extrapolation it is linear scaling, which leaves magnitudes alone.
  if (c.scaling == RopeSpec::Scaling::kYarn && c.extrapolation != 0.0f)
    t.magnitude *= static_cast<float>(0.1 * std::log(factor) + 1.0);
  return t;
}

}  // namespace quire
