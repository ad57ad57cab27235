// Encoders of the formats in fp4.cpp. A block's scale can be any of 126 (nvfp4) or 255 (mxfp4) codes, and for
// a given scale the nearest E2M1 codes are the best: so the search over scale codes is exhaustive, where it
// looks at codes that can win at all.
//   Upwards: at twice the scale that reaches the largest value, the grid of values is a subset of the grid at
//   once that scale. Downwards: what clipping costs only grows.
#include <algorithm>
#include <array>
#include <cmath>

#include "quant/format_table.h"
#include "quant/fp4.h"
#include "quant/search.h"

namespace quire::quant {
namespace {

constexpr int kNvSub = 16, kMxBlock = 32;

float max_magnitude(const float* src, int64_t count) {
  float largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, std::fabs(src[i]));
  return largest;
}

void store_codes(const float* src, int half_count, float scale, std::byte* qs) {
  auto code = [&](int i) { return encode_e2m1(scale > 0 ? src[i] / scale : 0); };
  for (int j = 0; j < half_count; ++j) qs[j] = static_cast<std::byte>(code(j) | code(j + half_count) << 4);
}

// Magnitudes times `inverse`, each rounded to E2M1: the thresholds lie halfway between its values.
Lanes round_e2m1(Lanes a) {
  Lanes v{};
  constexpr float kSteps[][2] = {{0.25f, 0.5f}, {0.75f, 0.5f}, {1.25f, 0.5f}, {1.75f, 0.5f},
                                 {2.5f, 1},     {3.5f, 1},     {5, 2}};
  for (const auto& [threshold, step] : kSteps) v += a > (Lanes{} + threshold) ? Lanes{} + step : Lanes{};
  return v;
}

// Weighted squared errors of N magnitudes at a scale: of all, and of those beyond 6 times the scale.
struct ScaleError {
  float all, clipped;
};
template <int N>
ScaleError error_at(const float* magnitudes, const float* w, float scale) {
  const float inverse = inverse_or_zero(scale);
  const Lanes top = Lanes{} + kE2m1Max * scale;
  Lanes all{}, clipped{};
  for (int i = 0; i < N; i += kLanes) {
    const Lanes a = load(magnitudes + i), e = a - round_e2m1(a * inverse) * scale, cost = load(w + i) * e * e;
    all += cost;
    clipped += a > top ? cost : Lanes{};
  }
  return {sum(all), sum(clipped)};
}

// The scale code of least error. `scale_of(code)`, in units of the block, must rise with the code from 0 to
// `top`; `start` is any code near the largest magnitude's.
template <int N, class ScaleOf>
int best_code(Block<N>& b, int start, int top, ScaleOf scale_of) {
  for (float& x : b.x) x = std::fabs(x);
  int best = start;
  ScaleError at_start = error_at<N>(b.x, b.w, scale_of(start));
  float least = at_start.all;
  auto consider = [&](int code) {
    const ScaleError e = error_at<N>(b.x, b.w, scale_of(code));
    if (e.all < least) least = e.all, best = code;
    return e;
  };
  const float subset = 2 * b.largest / kE2m1Max;  // from here on, half the scale is as good
  for (int code = start + 1; code <= top && scale_of(code) < subset * 1.001f; ++code) consider(code);
  for (int code = start - 1; code >= 0; --code)
    if (consider(code).clipped >= least) break;
  return best;
}

uint8_t best_nvfp4_code(const float* src, const float* importance, float tensor_scale) {
  Block<kNvSub> b(src, importance);
  if (b.largest == 0) return 0;
  // The ratio of two normal numbers; a scale much larger or smaller than the block's unit saturates.
  const float per_code = tensor_scale / b.unit;
  const int start = encode_ue4m3(b.largest / kE2m1Max / per_code);
  return static_cast<uint8_t>(
      best_code(b, start, 0x7e, [&](int code) { return decode_ue4m3(static_cast<uint8_t>(code)) * per_code; }));
}

uint8_t nearest_nvfp4_code(const float* src, float tensor_scale) {
  return encode_ue4m3(max_magnitude(src, kNvSub) / (kE2m1Max * tensor_scale));
}

// The power of two that puts the largest magnitude into [4, 8): between 6 and 8 it is clipped to 6.
int nearest_mxfp4_code(const float* src) {
  const float largest = max_magnitude(src, kMxBlock);
  const int exponent = static_cast<int>(std::bit_cast<uint32_t>(largest) >> 23);  // biased by 127, as e is
  return std::max(0, exponent - 2);
}

int best_mxfp4_code(const float* src, const float* importance) {
  Block<kMxBlock> b(src, importance);
  if (b.largest == 0) return 0;
  const float per_unit = 1 / b.unit;
  constexpr int kTop = 252;  // 6 * 2^(252 - 127) is still a float
  return best_code(b, std::min(nearest_mxfp4_code(src), kTop), kTop,
                   [&](int code) { return decode_e8m0(static_cast<uint8_t>(code)) * per_unit; });
}

const float* at(std::span<const float> importance, int64_t i) {
  return importance.empty() ? nullptr : importance.data() + i;
}

}  // namespace

void encode_mxfp4(const float* src, int64_t elems, const EncodeOptions& o, std::byte* dst) {
  for (int64_t b = 0; b < elems; b += kMxBlock, dst += 17) {
    const int e =
        o.search == Search::kNearest ? nearest_mxfp4_code(src + b) : best_mxfp4_code(src + b, at(o.importance, b));
    *dst = static_cast<std::byte>(e);
    store_codes(src + b, kMxBlock / 2, decode_e8m0(static_cast<uint8_t>(e)), dst + 1);
  }
}

void encode_nvfp4(const float* src, int64_t elems, const EncodeOptions& o, std::byte* dst) {
  QUIRE_CHECK(o.tensor_scale > 0 && std::isfinite(o.tensor_scale), "tensor scale {}", o.tensor_scale);
  for (int64_t b = 0; b < elems; b += 64, dst += 36)
    for (int s = 0; s < 4; ++s) {
      const int64_t i = b + kNvSub * s;
      const uint8_t code = o.search == Search::kNearest ? nearest_nvfp4_code(src + i, o.tensor_scale)
                                                        : best_nvfp4_code(src + i, at(o.importance, i), o.tensor_scale);
      dst[s] = static_cast<std::byte>(code);
      store_codes(src + i, kNvSub / 2, decode_ue4m3(code) * o.tensor_scale, dst + 4 + 8 * s);
    }
}

Result<float> nvfp4_tensor_scale(const float* src, int64_t elems) {
  for (int64_t i = 0; i < elems; ++i)
    if (!std::isfinite(src[i]))
      return request_error("element {} is {}; only finite values can be quantised", i, src[i]);
  const float largest = max_magnitude(src, elems);
  // A scale that underflows to a subnormal or to zero would lose what precision is left; such tensors are all
  // but zero.
  const float scale = largest / (kE2m1Max * kUe4m3Max);
  return scale >= std::numeric_limits<float>::min() ? scale : 1.0f;
}

std::span<const float> nvfp4_scale_factors() {
  static constexpr std::array<float, 8> kFactors = {1, 1.125f, 1.25f, 1.375f, 1.5f, 1.625f, 1.75f, 1.875f};
  return kFactors;
}

}  // namespace quire::quant
