// Encoders of the super-block formats in kquants.cpp that have scales and minima; encode_scaled.cpp has those
// with scales alone. The scales of the sub-blocks are themselves rounded, to 6 bits of the super-block's, so
// the search has two levels: a fit of every sub-block alone, and then, on the true error of all 256 values,
// turns of
//   - for every sub-block, the neighbours of its rounded scale and minimum, with codes taken anew;
//   - the super-block's half scales, by least squares for these codes.
#include <algorithm>
#include <array>
#include <cmath>

#include "quant/format_table.h"
#include "quant/search.h"

namespace quire::quant {
namespace {

constexpr int kSuper = 256;
constexpr int kTurns = 4;

int round_to(float x, int low, int high) {
  return static_cast<int>(std::clamp(std::nearbyint(x), static_cast<float>(low), static_cast<float>(high)));
}

// ---- q4_k and q5_k: x = d sc q - dmin mn, 8 sub-blocks of 32, sc and mn in 0..63 ----

constexpr int kSubs = 8, kSub = 32, kTopScale = 63;

struct AffineSuper {
  HalfScale d, dmin;
  std::array<int, kSubs> sc{}, mn{};
  float error = 0;

  Affine sub(int j) const {
    return {d.value * static_cast<float>(sc[static_cast<size_t>(j)]),
            -dmin.value * static_cast<float>(mn[static_cast<size_t>(j)])};
  }
};

// Rounds the wanted scales and offsets to the super-block's grid.
AffineSuper round_affine(const std::array<Affine, kSubs>& wanted, float unit) {
  float scale = 0, min = 0;
  for (const Affine& a : wanted) scale = std::max(scale, a.scale), min = std::max(min, -a.offset);
  AffineSuper s{half_scale(scale / kTopScale, unit), half_scale(min / kTopScale, unit)};
  const float per_scale = inverse_or_zero(s.d.value), per_min = inverse_or_zero(s.dmin.value);
  for (size_t j = 0; j < kSubs; ++j) {
    s.sc[j] = round_to(wanted[j].scale * per_scale, 0, kTopScale);
    s.mn[j] = round_to(-wanted[j].offset * per_min, 0, kTopScale);
  }
  return s;
}

float error_of(const Block<kSuper>& b, int j, const Affine& a, float levels) {
  return affine_codes<kSub>(b.x + j * kSub, b.w + j * kSub, a, levels, nullptr);
}

// Moves each sub-block to the best of the nine neighbours of its scale and minimum. Sets s.error.
void improve_subs(const Block<kSuper>& b, float levels, AffineSuper& s) {
  s.error = 0;
  for (int j = 0; j < kSubs; ++j) {
    const auto at = static_cast<size_t>(j);
    const int sc0 = s.sc[at], mn0 = s.mn[at];
    float least = error_of(b, j, s.sub(j), levels);
    int best_sc = sc0, best_mn = mn0;
    for (int sc = std::max(sc0 - 1, 0); sc <= std::min(sc0 + 1, kTopScale); ++sc)
      for (int mn = std::max(mn0 - 1, 0); mn <= std::min(mn0 + 1, kTopScale); ++mn) {
        const Affine a{s.d.value * static_cast<float>(sc), -s.dmin.value * static_cast<float>(mn)};
        const float error = error_of(b, j, a, levels);
        if (error < least) least = error, best_sc = sc, best_mn = mn;
      }
    s.sc[at] = best_sc;
    s.mn[at] = best_mn;
    s.error += least;
  }
}

// The d and dmin of least error for the codes as they are.
void refit_super(const Block<kSuper>& b, float levels, AffineSuper& s) {
  double aa = 0, ab = 0, bb = 0, xa = 0, xb = 0;  // x = d a - dmin b
  for (int j = 0; j < kSubs; ++j) {
    float q[kSub];
    const float *x = b.x + j * kSub, *w = b.w + j * kSub;
    affine_codes<kSub>(x, w, s.sub(j), levels, q);
    const double sc = s.sc[static_cast<size_t>(j)], mn = s.mn[static_cast<size_t>(j)];
    for (int i = 0; i < kSub; ++i) {
      const double a = sc * q[i], weight = w[i];
      aa += weight * a * a;
      ab += weight * a * mn;
      bb += weight * mn * mn;
      xa += weight * x[i] * a;
      xb += weight * x[i] * mn;
    }
  }
  const double determinant = aa * bb - ab * ab;
  double d = s.d.value, dmin = s.dmin.value;
  if (determinant > 1e-9 * aa * bb) {
    d = (xa * bb - xb * ab) / determinant;
    dmin = (xa * ab - xb * aa) / determinant;
  } else if (aa > 0) {
    d = (xa + dmin * ab) / aa;
  }
  if (d > 0) s.d = half_scale(static_cast<float>(d), b.unit);
  if (dmin >= 0) s.dmin = half_scale(static_cast<float>(dmin), b.unit);
}

AffineSuper best_affine(const Block<kSuper>& b, float levels) {
  std::array<Affine, kSubs> wanted;
  for (int j = 0; j < kSubs; ++j)
    wanted[static_cast<size_t>(j)] = AffineFit<kSub>(b.x + j * kSub, b.w + j * kSub, levels, true).best();
  AffineSuper now = round_affine(wanted, b.unit);
  improve_subs(b, levels, now);
  AffineSuper best = now;
  for (int turn = 0; turn < kTurns; ++turn) {
    refit_super(b, levels, now);
    improve_subs(b, levels, now);
    if (!(now.error < best.error)) break;
    best = now;
  }
  return best;
}

// From the smallest to the largest value of each sub-block in equal steps; zero is always in range.
AffineSuper nearest_affine(const Block<kSuper>& b, float levels) {
  std::array<Affine, kSubs> wanted;
  for (int j = 0; j < kSubs; ++j) {
    const float* x = b.x + j * kSub;
    const auto [low, high] = std::minmax_element(x, x + kSub);
    const float from = std::min(*low, 0.0f);
    wanted[static_cast<size_t>(j)] = {(*high - from) / levels, from};
  }
  return round_affine(wanted, b.unit);
}

// Six-bit scales and minima in twelve bytes; see unpack() in kquants.cpp.
void pack_scales(const AffineSuper& s, std::byte* out) {
  uint8_t bytes[12] = {};
  for (size_t j = 0; j < 4; ++j) {
    bytes[j] = static_cast<uint8_t>(s.sc[j] | s.sc[j + 4] >> 4 << 6);
    bytes[j + 4] = static_cast<uint8_t>(s.mn[j] | s.mn[j + 4] >> 4 << 6);
    bytes[j + 8] = static_cast<uint8_t>((s.sc[j + 4] & 15) | (s.mn[j + 4] & 15) << 4);
  }
  std::memcpy(out, bytes, sizeof bytes);
}

// Encodes one super-block; returns its codes. What q4_k and q5_k share.
std::array<int, kSuper> encode_affine(const float* src, const float* importance, float levels, Search search,
                                      std::byte* dst) {
  const Block<kSuper> b(src, importance);
  const AffineSuper s = search == Search::kNearest ? nearest_affine(b, levels) : best_affine(b, levels);
  std::memcpy(dst, &s.d.bits.bits, 2);
  std::memcpy(dst + 2, &s.dmin.bits.bits, 2);
  pack_scales(s, dst + 4);
  float q[kSuper];
  std::array<int, kSuper> codes;
  for (int j = 0; j < kSubs; ++j) affine_codes<kSub>(b.x + j * kSub, b.w + j * kSub, s.sub(j), levels, q + j * kSub);
  std::transform(std::begin(q), std::end(q), codes.begin(), [](float c) { return static_cast<int>(c); });
  return codes;
}

// Each group of 64 elements shares 32 bytes: its first half in the low nibbles, its second in the high ones.
void pack_nibbles(const std::array<int, kSuper>& codes, std::byte* qs) {
  for (size_t i = 0; i < kSuper; i += 64)
    for (size_t l = 0; l < 32; ++l)
      qs[i / 2 + l] = static_cast<std::byte>((codes[i + l] & 15) | (codes[i + 32 + l] & 15) << 4);
}

const float* at(std::span<const float> importance, int64_t i) {
  return importance.empty() ? nullptr : importance.data() + i;
}

}  // namespace

void encode_q4_k(const float* src, int64_t elems, const EncodeOptions& o, std::byte* dst) {
  for (int64_t b = 0; b < elems; b += kSuper, dst += 144) {
    const auto codes = encode_affine(src + b, at(o.importance, b), 15, o.search, dst);
    pack_nibbles(codes, dst + 16);
  }
}

void encode_q5_k(const float* src, int64_t elems, const EncodeOptions& o, std::byte* dst) {
  for (int64_t b = 0; b < elems; b += kSuper, dst += 176) {
    const auto codes = encode_affine(src + b, at(o.importance, b), 31, o.search, dst);
    for (size_t l = 0; l < 32; ++l) {
      int fifth = 0;
      for (size_t j = 0; j < kSubs; ++j) fifth |= codes[32 * j + l] >> 4 << j;
      dst[16 + l] = static_cast<std::byte>(fifth);
    }
    pack_nibbles(codes, dst + 48);
  }
}

}  // namespace quire::quant
