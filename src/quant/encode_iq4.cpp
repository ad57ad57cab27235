// Encoder of iq4_nl: codes for sixteen values that are not spaced evenly (iq4.h) times a half scale, of either
// sign, since the values reach farther below zero than above it. The search is that of search.h: a grid of
// trial scales, then least squares and new codes in turn.
#include <algorithm>
#include <array>
#include <cmath>

#include "quant/format_table.h"
#include "quant/iq4.h"
#include "quant/search.h"

namespace quire::quant {
namespace {

constexpr int kBlock = 32;
constexpr float kReach = -static_cast<float>(kIq4Values[0]);

// Between value k and the next: where the nearer of both changes.
constexpr auto kBounds = [] {
  std::array<float, 15> bounds{};
  for (size_t k = 0; k < bounds.size(); ++k) bounds[k] = 0.5f * static_cast<float>(kIq4Values[k] + kIq4Values[k + 1]);
  return bounds;
}();

// The nearest of the values, the lower on ties.
Lanes nearest_value(Lanes x) {
  Lanes v = Lanes{} + static_cast<float>(kIq4Values[0]);
  for (size_t k = 0; k < kBounds.size(); ++k)
    v += x > kBounds[k] ? Lanes{} + static_cast<float>(kIq4Values[k + 1] - kIq4Values[k]) : Lanes{};
  return v;
}
int nearest_code(float x) {
  int code = 0;
  for (const float bound : kBounds) code += x > bound;
  return code;
}

ScaleSums sums_of(const Block<kBlock>& b, float inverse) {
  Lanes xv{}, vv{};
  for (int i = 0; i < kBlock; i += kLanes) {
    const Lanes x = load(b.x + i), v = nearest_value(x * inverse), wv = load(b.w + i) * v;
    xv += wv * x;
    vv += wv * v;
  }
  return {sum(xv), sum(vv)};
}

float best_scale(const Block<kBlock>& b) {
  if (!(b.largest > 0)) return 0;
  float best = 0, scale = 0;
  const auto consider = [&](float inverse) {
    const ScaleSums s = sums_of(b, inverse);
    const float gain = s.qq > 0 ? s.xq / s.qq * s.xq : 0;
    if (!(gain > best)) return false;
    best = gain;
    scale = s.xq / s.qq;
    return true;
  };
  // The largest magnitude lands on `reach` times the outermost value, or beyond it, clipped.
  for (float reach = 0.7f; reach < 2.2f; reach += reach < 1.25f ? 0.025f : 0.15f)
    for (const float sign : {-1.0f, 1.0f}) consider(sign * reach * kReach / b.largest);
  for (int pass = 0; pass < 8 && consider(1 / scale); ++pass) {
  }
  return scale;
}

// The element of largest magnitude becomes the lowest code.
float nearest_scale(const Block<kBlock>& b) {
  const float* m = std::max_element(b.x, b.x + kBlock, [](float p, float q) { return std::fabs(p) < std::fabs(q); });
  return *m / -kReach;
}

}  // namespace

void encode_iq4_nl(const float* src, int64_t elems, const EncodeOptions& o, std::byte* dst) {
  for (int64_t i = 0; i < elems; i += kBlock, dst += 18) {
    const Block<kBlock> b(src + i, o.importance.empty() ? nullptr : o.importance.data() + i);
    const HalfScale d = half_scale(o.search == Search::kNearest ? nearest_scale(b) : best_scale(b), b.unit);
    const float inverse = inverse_or_zero(d.value);
    std::memcpy(dst, &d.bits.bits, 2);
    for (int j = 0; j < kBlock / 2; ++j)
      dst[2 + j] =
          static_cast<std::byte>(nearest_code(b.x[j] * inverse) | nearest_code(b.x[j + kBlock / 2] * inverse) << 4);
  }
}

}  // namespace quire::quant
