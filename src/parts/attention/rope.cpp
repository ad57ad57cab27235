#include "parts/attention/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "parts/keys.h"

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

// The paper's own numbers where a file says nothing.
Status read_yarn(const ModelKeys& k, RopeSpec& r) {
  QUIRE_CHECKED(k.real("rope.scaling.yarn_ext_factor", r.extrapolation));
  if (r.extrapolation < 0.0f) r.extrapolation = 1.0f;  // as other programs have it
  if (r.extrapolation > 1.0f)
    return file_error("{}: {} is above 1", k.full("rope.scaling.yarn_ext_factor"), r.extrapolation);
  QUIRE_CHECKED(k.positive("rope.scaling.yarn_beta_fast", r.beta_fast));
  QUIRE_CHECKED(k.positive("rope.scaling.yarn_beta_slow", r.beta_slow));
  if (r.beta_fast <= r.beta_slow)
    return file_error("{}: {} is not above {}, that of the slow ones", k.full("rope.scaling.yarn_beta_fast"),
                      r.beta_fast, r.beta_slow);
  return {};
}

Status read_sections(const ModelKeys& k, RopeSpec& r) {
  constexpr std::string_view kKey = "rope.dimension_sections";
  if (!k.has(kKey)) return {};
  QUIRE_TRY(const std::vector<int32_t> all, k.file().get_i32_array(k.full(kKey)));
  if (all.size() < r.sections.size()) return file_error("{}: {} numbers, not three", k.full(kKey), all.size());
  int64_t sum = 0;
  for (const int32_t n : all) {
    if (n < 0 || n > r.n_rot) return file_error("{}: {} of {} pairs", k.full(kKey), n, r.n_rot / 2);
    sum += n;
  }
  if (sum > r.n_rot / 2) return file_error("{}: {} pairs, but {} are turned", k.full(kKey), sum, r.n_rot / 2);
  std::copy_n(all.begin(), r.sections.size(), r.sections.begin());
  return {};
}

std::vector<int32_t> axes_of(const RopeSpec& c) {
  std::vector<int32_t> axes;
  if (!c.has_sections()) return axes;
  for (int32_t j = 0; j < c.n_rot / 2; ++j) {
    const int32_t turn = j % 3;
    axes.push_back(turn > 0 && j < 3 * c.sections[static_cast<size_t>(turn)] ? turn : 0);
  }
  return axes;
}

}  // namespace

Status read_rope(const ModelKeys& k, const Architecture& row, int32_t head_dim, int64_t& context, RopeSpec& r) {
  r.style = row.rope == RopePairs::kNeighbours ? Rope::Style::kInterleaved : Rope::Style::kHalves;
  QUIRE_CHECKED(k.number32_or("rope.dimension_count", head_dim, 2, head_dim, r.n_rot));
  if (r.n_rot % 2 != 0) return file_error("{}: {} is odd", k.full("rope.dimension_count"), r.n_rot);
  r.exact_yarn = row.exact_yarn;
  if (row.rope_sections) QUIRE_CHECKED(read_sections(k, r));
  QUIRE_CHECKED(k.positive("rope.freq_base", r.freq_base));
  QUIRE_TRY(const std::string_view type, k.file().get_string_or(k.full("rope.scaling.type"), "none"));
  QUIRE_CHECKED(k.positive("rope.scaling.factor", r.factor));
  QUIRE_CHECKED(k.positive("rope.scaling.attn_factor", r.attn_factor));
  QUIRE_CHECKED(k.number_or("rope.scaling.original_context_length", context, 1, INT32_MAX, r.original_context));
  using Scaling = RopeSpec::Scaling;
  if (type == "yarn") {
    r.scaling = Scaling::kYarn;
    QUIRE_CHECKED(read_yarn(k, r));
  } else if (type == "linear" || type == "none" || type == "longrope") {  // longrope: divisors are tensors
    r.scaling = type == "linear" && r.factor != 1.0f ? Scaling::kLinear : Scaling::kNone;
  } else {
    return file_error("{}: {} is not supported (none, linear, yarn and longrope are)", k.full("rope.scaling.type"),
                      gguf::printable(type));
  }
  // Beyond the context of the first training it has other frequencies: positions end there.
  if (k.file().find_tensor(tensor_name(TensorRole::kRopeShort)) != nullptr)
    context = std::min(context, r.original_context);
  return {};
}

Status read_local_rope(const ModelKeys& k, const Architecture& row, int32_t head_dim, RopeSpec& r) {
  if (row.local_rope_theta == 0) return {};
  r.scaling = RopeSpec::Scaling::kNone;
  r.freq_base = static_cast<float>(row.local_rope_theta);
  if (row.own_window_heads) {
    constexpr std::string_view kKey = "rope.dimension_count_swa";
    QUIRE_CHECKED(k.number32_or(kKey, head_dim, 2, head_dim, r.n_rot));
    if (r.n_rot % 2 != 0) return file_error("{}: {} is odd", k.full(kKey), r.n_rot);
  }
  return k.positive("rope.freq_base_swa", r.freq_base);
}

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
  t.axes = axes_of(c);
  t.magnitude = c.attn_factor;
  // Without any extrapolation it is linear scaling, which leaves magnitudes alone.
  if (c.scaling == RopeSpec::Scaling::kYarn && c.extrapolation != 0.0f)
    t.magnitude *= static_cast<float>(0.1 * std::log(factor) + 1.0);
  return t;
}

Result<std::span<const float>> load_rope_divisors(WeightLoader& w) {
  TensorRole role = TensorRole::kRopeFreqs;
  QUIRE_TRY(Tensor t, w.optional_vector(role));
  if (t.empty()) {
    role = TensorRole::kRopeShort;
    QUIRE_TRY(t, w.optional_vector(role));
    QUIRE_CHECKED(w.optional_vector(TensorRole::kRopeLong));  // of positions that read_rope leaves out
  }
  if (t.empty()) return std::span<const float>{};
  const std::span<const float> divisors(t.as<float>(), static_cast<size_t>(t.dim(0)));
  for (const float f : divisors)
    if (!(f > 0.0f)) return file_error("tensor {}: divisor {} is not positive", tensor_name(role), f);
  return divisors;
}

}  // namespace quire
