// What the encoders share when they search for scales: a block of values brought to a safe range, and
// weighted least-squares fits of a scale, or of a scale and an offset, to codes of a few bits.
//
// All fits work alike. A grid of trial scales gives codes; for fixed codes the best scale is the solution of
// a linear least-squares problem; that scale gives new codes; and so on until the error stops falling. Trials
// and refinements only ever lower the error, and the order of all sums is fixed, so results are repeatable.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "core/float.h"

namespace quire::quant {

// Eight values at once, added up in a fixed order. (The compiler may not reorder float sums, so a plain loop
// would not be vectorised.)
using Lanes = float __attribute__((vector_size(32)));
inline constexpr int kLanes = 8;

inline Lanes load(const float* at) {
  Lanes x;
  __builtin_memcpy(&x, at, sizeof x);
  return x;
}
// To the nearest integer, ties to even; |x| below 2^22.
inline Lanes rint(Lanes x) {
  return (x + 0x1.8p23f) - 0x1.8p23f;
}
inline Lanes clamp(Lanes x, float low, float high) {
  const Lanes lows = Lanes{} + low, highs = Lanes{} + high;
  x = x < lows ? lows : x;
  return x > highs ? highs : x;
}
inline float sum(Lanes x) {
  return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
}

// N values divided by a power of two that puts the largest magnitude into [1, 2): squares then neither
// overflow nor vanish. What is not finite counts as 0. Weights are at most 1 and positive.
template <int N>
struct Block {
  alignas(32) float x[N];
  alignas(32) float w[N];
  float unit = 1;     // x[i] * unit is the value
  float largest = 0;  // of |x|; 0 only if all are zero

  Block(const float* src, const float* importance) {
    for (int i = 0; i < N; ++i) {
      x[i] = std::isfinite(src[i]) ? src[i] : 0;
      largest = std::max(largest, std::fabs(x[i]));
    }
    const uint32_t exponent = std::clamp(std::bit_cast<uint32_t>(largest) >> 23, 1u, 253u);
    unit = std::bit_cast<float>(exponent << 23);
    const float inverse = std::bit_cast<float>((254 - exponent) << 23);
    for (float& v : x) v *= inverse;
    largest *= inverse;
    set_weights(importance);
  }

 private:
  void set_weights(const float* importance) {
    float most = 0;
    if (importance != nullptr)
      for (int i = 0; i < N; ++i)
        if (std::isfinite(importance[i])) most = std::max(most, importance[i]);
    for (int i = 0; i < N; ++i) {
      const float relative = most > 0 ? importance[i] / most : 1.0f;
      w[i] = relative >= 1e-6f ? std::min(relative, 1.0f) : 1e-6f;  // NaN and negative numbers too
    }
  }
};

// A scale as it will be read back: rounded to half, never infinite. `value` is in units of a block.
struct HalfScale {
  half bits;
  float value = 0;
};
inline half finite_half(float x) {
  return to_half(std::clamp(x, -65504.0f, 65504.0f));
}
inline HalfScale half_scale(float x, float unit) {
  const half h = finite_half(x * unit);
  return {h, to_float(h) / unit};
}
// For division by a scale that may have been rounded to zero.
inline float inverse_or_zero(float x) {
  return x != 0 ? 1 / x : 0;
}

// ---- x = scale * code, code in [-levels, levels - 1] ----

struct ScaleSums {
  float xq, qq;  // sums of w x q and w q q
};
template <int N>
ScaleSums scale_sums(const float* x, const float* w, float inverse, float levels) {
  Lanes xq{}, qq{};
  for (int i = 0; i < N; i += kLanes) {
    const Lanes v = load(x + i), q = clamp(rint(v * inverse), -levels, levels - 1), wq = load(w + i) * q;
    xq += wq * v;
    qq += wq * q;
  }
  return {sum(xq), sum(qq)};
}

// The scale, of either sign, whose codes leave the least weighted squared error; 0 if all values are zero.
// The fall of the error against all-zero codes is xq^2 / qq.
template <int N>
float fit_scale(const float* x, const float* w, float levels) {
  float largest = 0;
  for (int i = 0; i < N; ++i) largest = std::max(largest, std::fabs(x[i]));
  if (!(largest > 1e-30f)) return 0;
  float best = 0, scale = 0;
  auto consider = [&](float inverse) {
    const ScaleSums s = scale_sums<N>(x, w, inverse, levels);
    const float gain = s.qq > 0 ? s.xq / s.qq * s.xq : 0;
    if (!(gain > best)) return false;
    best = gain;
    scale = s.xq / s.qq;
    return true;
  };
  // The largest value lands on code `reach`: about the end of the range, or beyond it where clipping it (it
  // may weigh little) buys a finer scale for the others. Either sign: one side has a code more.
  for (float reach = 0.70f * levels; reach < 2.2f * levels; reach += (reach < 1.25f * levels ? 0.025f : 0.15f) * levels)
    for (const float sign : {-1.0f, 1.0f}) consider(sign * reach / largest);
  for (int pass = 0; pass < 8 && consider(1 / scale); ++pass) {
  }
  return scale;
}

// ---- x = scale * code + offset, code in [0, levels] ----

struct Affine {
  float scale = 0, offset = 0;
};

template <int N>
class AffineFit {
 public:
  // With `offset_below_zero` the offset is never positive.
  AffineFit(const float* x, const float* w, float levels, bool offset_below_zero)
      : x_(x), w_(w), levels_(levels), below_zero_(offset_below_zero) {
    Lanes sw{}, sx{}, sxx{};
    for (int i = 0; i < N; i += kLanes) {
      const Lanes v = load(x + i), m = load(w + i);
      sw += m;
      sx += m * v;
      sxx += m * v * v;
    }
    weight_ = sum(sw), x_sum_ = sum(sx), xx_sum_ = sum(sxx);
  }

  Affine best() {
    auto [low_at, high_at] = std::minmax_element(x_, x_ + N);
    const float low = below_zero_ ? std::min(*low_at, 0.0f) : *low_at, range = *high_at - low;
    if (!(range > 1e-30f)) return {0, low};
    // Both ends move inwards, clipping what lies beyond, or outwards a little.
    constexpr float kMoves[] = {-0.03f, -0.015f, 0, 0.015f, 0.03f, 0.05f, 0.08f, 0.12f, 0.18f};
    for (const float a : kMoves)
      for (const float b : kMoves) consider({range * (1 - a - b) / levels_, low + range * a});
    for (int pass = 0; pass < 8 && consider(fit_); ++pass) {
    }
    return fit_;
  }

 private:
  // Takes the codes that `trial` gives, and keeps the least-squares fit to them if it is the best so far.
  bool consider(Affine trial) {
    if (below_zero_ && trial.offset > 0) trial.offset = 0;
    if (trial.scale == 0) return false;
    const float inverse = 1 / trial.scale;
    Lanes sq{}, sqq{}, sxq{};
    for (int i = 0; i < N; i += kLanes) {
      const Lanes v = load(x_ + i), q = clamp(rint((v - trial.offset) * inverse), 0, levels_), wq = load(w_ + i) * q;
      sq += wq;
      sqq += wq * q;
      sxq += wq * v;
    }
    const double q = sum(sq), qq = sum(sqq), xq = sum(sxq), determinant = weight_ * qq - q * q;
    double scale = 0, offset = 0;
    if (determinant > 1e-6 * weight_ * qq) {
      scale = (weight_ * xq - x_sum_ * q) / determinant;
      offset = (qq * x_sum_ - q * xq) / determinant;
    } else {
      offset = x_sum_ / weight_;
    }
    if (below_zero_ && offset > 0) {
      offset = 0;
      scale = qq > 0 ? xq / qq : 0;
    }
    // Sum of w (x - scale q - offset)^2, expanded.
    const double error = xx_sum_ + scale * scale * qq + offset * offset * weight_ -
                         2 * (scale * xq + offset * x_sum_ - scale * offset * q);
    if (!(error < error_)) return false;
    error_ = error;
    fit_ = {static_cast<float>(scale), static_cast<float>(offset)};
    return true;
  }

  const float *x_, *w_;
  float levels_;
  bool below_zero_;
  double weight_ = 0, x_sum_ = 0, xx_sum_ = 0, error_ = 1e300;
  Affine fit_;
};

// The codes of x = scale * code + offset for N values, and their weighted squared error. A scale of zero
// gives codes of zero.
template <int N>
float affine_codes(const float* x, const float* w, Affine a, float levels, float* codes) {
  const float inverse = inverse_or_zero(a.scale);
  Lanes error{};
  for (int i = 0; i < N; i += kLanes) {
    const Lanes v = load(x + i) - a.offset, q = clamp(rint(v * inverse), 0, levels), e = v - q * a.scale;
    error += load(w + i) * e * e;
    if (codes != nullptr) __builtin_memcpy(codes + i, &q, sizeof q);
  }
  return sum(error);
}
// The same without an offset, codes in [-levels, levels - 1].
template <int N>
float scale_codes(const float* x, const float* w, float scale, float levels, float* codes) {
  const float inverse = inverse_or_zero(scale);
  Lanes error{};
  for (int i = 0; i < N; i += kLanes) {
    const Lanes v = load(x + i), q = clamp(rint(v * inverse), -levels, levels - 1), e = v - q * scale;
    error += load(w + i) * e * e;
    if (codes != nullptr) __builtin_memcpy(codes + i, &q, sizeof q);
  }
  return sum(error);
}

}  // namespace quire::quant
