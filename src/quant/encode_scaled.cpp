// Encoders of the super-block formats in kquants.cpp that have scales alone: x = d sc (q - levels), 16
// sub-blocks of 16, signed sc of a few bits. The search is that of encode_kquants.cpp: every sub-block alone,
// then in turns the rounded scales of the sub-blocks and the half scale of all.
#include <algorithm>
#include <array>
#include <cmath>

#include "quant/format_table.h"
#include "quant/search.h"

namespace quire::quant {
namespace {

constexpr int kSuper = 256, kSubs = 16, kSub = 16;
constexpr int kTurns = 4;

struct Form {
  float levels;  // codes less `levels` are in [-levels, levels - 1]
  int lowest;    // scales are in [lowest, -lowest - 1]
};
constexpr Form kQ3K{4, -32}, kQ6K{32, -128};

struct ScaleSuper {
  HalfScale d;
  std::array<int, kSubs> sc{};
  float error = 0;

  float sub(int j) const { return d.value * static_cast<float>(sc[static_cast<size_t>(j)]); }
};

ScaleSuper round_scales(const Form& f, const std::array<float, kSubs>& wanted, float unit) {
  float largest = 0;
  for (const float w : wanted)
    if (std::fabs(w) > std::fabs(largest)) largest = w;
  const auto lowest = static_cast<float>(f.lowest);
  ScaleSuper s{half_scale(largest / lowest, unit)};
  const float inverse = inverse_or_zero(s.d.value);
  for (size_t j = 0; j < kSubs; ++j)
    s.sc[j] = static_cast<int>(std::clamp(std::nearbyint(wanted[j] * inverse), lowest, -lowest - 1));
  return s;
}

// Moves each sub-block to the best of its scale's four neighbours: trying all instead takes a thousandth off the
// error of Q3_K. Sets s.error.
void improve_subs(const Form& f, const Block<kSuper>& b, ScaleSuper& s) {
  s.error = 0;
  for (int j = 0; j < kSubs; ++j) {
    int& sc = s.sc[static_cast<size_t>(j)];
    const int from = sc;
    auto error_with = [&](int scale) {
      return scale_codes<kSub>(b.x + j * kSub, b.w + j * kSub, s.d.value * static_cast<float>(scale), f.levels,
                               nullptr);
    };
    float least = error_with(from);
    for (const int step : {-1, 1, -2, 2}) {
      const int scale = std::clamp(from + step, f.lowest, -f.lowest - 1);
      const float error = error_with(scale);
      if (error < least) least = error, sc = scale;
    }
    s.error += least;
  }
}

// The d of least error for the codes as they are.
void refit_super(const Form& f, const Block<kSuper>& b, ScaleSuper& s) {
  double aa = 0, xa = 0;
  for (int j = 0; j < kSubs; ++j) {
    float q[kSub];
    const float *x = b.x + j * kSub, *w = b.w + j * kSub;
    const auto sc = static_cast<float>(s.sc[static_cast<size_t>(j)]);
    scale_codes<kSub>(x, w, s.d.value * sc, f.levels, q);
    for (int i = 0; i < kSub; ++i) {
      const double a = double{sc} * q[i];
      aa += w[i] * a * a;
      xa += w[i] * a * x[i];
    }
  }
  if (aa > 0) s.d = half_scale(static_cast<float>(xa / aa), b.unit);
}

ScaleSuper best_scales(const Form& f, const Block<kSuper>& b) {
  std::array<float, kSubs> wanted;
  for (int j = 0; j < kSubs; ++j)
    wanted[static_cast<size_t>(j)] = fit_scale<kSub>(b.x + j * kSub, b.w + j * kSub, f.levels);
  ScaleSuper now = round_scales(f, wanted, b.unit);
  improve_subs(f, b, now);
  ScaleSuper best = now;
  for (int turn = 0; turn < kTurns; ++turn) {
    refit_super(f, b, now);
    improve_subs(f, b, now);
    if (!(now.error < best.error)) break;
    best = now;
  }
  return best;
}

// The element of largest magnitude of each sub-block becomes the lowest code.
ScaleSuper nearest_scales(const Form& f, const Block<kSuper>& b) {
  std::array<float, kSubs> wanted;
  for (int j = 0; j < kSubs; ++j) {
    const float* x = b.x + j * kSub;
    const float* m = std::max_element(x, x + kSub, [](float p, float q) { return std::fabs(p) < std::fabs(q); });
    wanted[static_cast<size_t>(j)] = *m / -f.levels;
  }
  return round_scales(f, wanted, b.unit);
}

struct Encoded {
  ScaleSuper scales;
  std::array<int, kSuper> codes;  // from 0 on
};
Encoded encode_super(const Form& f, const float* src, const float* importance, Search search) {
  const Block<kSuper> b(src, importance);
  Encoded e{search == Search::kNearest ? nearest_scales(f, b) : best_scales(f, b), {}};
  for (int j = 0; j < kSubs; ++j) {
    float q[kSub];
    scale_codes<kSub>(b.x + j * kSub, b.w + j * kSub, e.scales.sub(j), f.levels, q);
    for (int i = 0; i < kSub; ++i) e.codes[static_cast<size_t>(j * kSub + i)] = static_cast<int>(q[i] + f.levels);
  }
  return e;
}

const float* at(std::span<const float> importance, int64_t i) {
  return importance.empty() ? nullptr : importance.data() + i;
}

// Sixteen scales of 6 bits in twelve bytes; see unpack_six() in kquants.cpp.
void pack_sixes(const std::array<int, kSubs>& scales, std::byte* out) {
  const auto six = [&](size_t j) { return scales[j] + 32; };
  for (size_t j = 0; j < 8; ++j) out[j] = static_cast<std::byte>((six(j) & 15) | (six(j + 8) & 15) << 4);
  for (size_t j = 0; j < 4; ++j)
    out[8 + j] =
        static_cast<std::byte>(six(j) >> 4 | six(j + 4) >> 4 << 2 | six(j + 8) >> 4 << 4 | six(j + 12) >> 4 << 6);
}

// Byte l of a half of 128 elements: bits `from` and `from` + 1 of the codes of elements l, l + 32, l + 64 and l + 96.
std::byte pack_crumbs(const std::array<int, kSuper>& codes, size_t h, size_t l, int from) {
  int byte = 0;
  for (size_t g = 0; g < 4; ++g) byte |= (codes[128 * h + 32 * g + l] >> from & 3) << (2 * g);
  return static_cast<std::byte>(byte);
}

}  // namespace

void encode_q3_k(const float* src, int64_t elems, const EncodeOptions& o, std::byte* dst) {
  for (int64_t i = 0; i < elems; i += kSuper, dst += 110) {
    const Encoded e = encode_super(kQ3K, src + i, at(o.importance, i), o.search);
    for (size_t l = 0; l < 32; ++l) {
      int third = 0;
      for (size_t g = 0; g < 8; ++g) third |= e.codes[32 * g + l] >> 2 << g;
      dst[l] = static_cast<std::byte>(third);
      for (size_t h = 0; h < 2; ++h) dst[32 + 32 * h + l] = pack_crumbs(e.codes, h, l, 0);
    }
    pack_sixes(e.scales.sc, dst + 96);
    std::memcpy(dst + 108, &e.scales.d.bits.bits, 2);
  }
}

void encode_q6_k(const float* src, int64_t elems, const EncodeOptions& o, std::byte* dst) {
  for (int64_t i = 0; i < elems; i += kSuper, dst += 210) {
    const Encoded e = encode_super(kQ6K, src + i, at(o.importance, i), o.search);
    // Halves of 128 elements, each four groups of 32: see decode_q6_k.
    for (size_t h = 0; h < 2; ++h)
      for (size_t l = 0; l < 32; ++l) {
        const auto nibbles = [&](size_t g) {
          return static_cast<std::byte>((e.codes[128 * h + 32 * g + l] & 15) | (e.codes[128 * h + 32 * g + l + 64] & 15)
                                                                                   << 4);
        };
        dst[64 * h + l] = nibbles(0);
        dst[64 * h + 32 + l] = nibbles(1);
        dst[128 + 32 * h + l] = pack_crumbs(e.codes, h, l, 4);
      }
    for (size_t j = 0; j < kSubs; ++j) dst[192 + j] = static_cast<std::byte>(e.scales.sc[j]);
    std::memcpy(dst + 208, &e.scales.d.bits.bits, 2);
  }
}

}  // namespace quire::quant
