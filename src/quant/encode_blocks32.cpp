// Encoders of the formats in blocks32.cpp.
#include <algorithm>
#include <cmath>

#include "quant/block_bytes.h"
#include "quant/format_table.h"
#include "quant/search.h"

namespace quire::quant {
namespace {

constexpr int kBlock = 32;

// In this form NaN becomes `low`; converting it to an integer would be undefined.
int to_code(float x, int low, int high) {
  return x > static_cast<float>(low) ? static_cast<int>(std::min(x, static_cast<float>(high))) : low;
}

void store(std::byte* at, half h) {
  std::memcpy(at, &h.bits, sizeof h.bits);
}

float finite_scale(float x) {
  return std::isfinite(x) ? std::clamp(x, -65504.0f, 65504.0f) : 65504.0f;
}

// codes: 4 or 5 bits each. Returns the fifth bits, element i's in bit i.
uint32_t pack_nibbles(const int* codes, std::byte* qs) {
  uint32_t fifth = 0;
  for (int j = 0; j < 16; ++j) qs[j] = static_cast<std::byte>((codes[j] & 15) | (codes[j + 16] & 15) << 4);
  for (int i = 0; i < kBlock; ++i) fifth |= static_cast<uint32_t>(codes[i] >> 4 & 1) << i;
  return fifth;
}

// ---- q4_0 and q5_0: half d, (u32 qh,) u8 qs[16]; levels 8 or 16 ----

// The element of largest magnitude becomes the lowest code, value -levels * d, whatever its sign: d takes the
// opposite sign.
half nearest_scale_codes(const float* src, int levels, int* codes) {
  float largest = 0;
  for (int i = 0; i < kBlock; ++i)
    if (std::fabs(src[i]) > std::fabs(largest)) largest = src[i];
  const float d = finite_scale(largest / static_cast<float>(-levels)), inverse = inverse_or_zero(d);
  for (int i = 0; i < kBlock; ++i)
    codes[i] = to_code(src[i] * inverse + static_cast<float>(levels) + 0.5f, 0, 2 * levels - 1);
  return to_half(d);
}

half best_scale_codes(const float* src, const float* importance, int levels, int* codes) {
  const Block<kBlock> b(src, importance);
  const auto n = static_cast<float>(levels);
  const HalfScale d = half_scale(fit_scale<kBlock>(b.x, b.w, n), b.unit);
  float q[kBlock];
  scale_codes<kBlock>(b.x, b.w, d.value, n, q);
  for (int i = 0; i < kBlock; ++i) codes[i] = static_cast<int>(q[i]) + levels;
  return d.bits;
}

// ---- q4_1 and q5_1: half d, half m, (u32 qh,) u8 qs[16]; codes up to 15 or 31 ----

struct HalfPair {
  half d, m;
};

HalfPair nearest_affine_codes(const float* src, int top, int* codes) {
  const auto [low, high] = std::minmax_element(src, src + kBlock);
  const float m = finite_scale(*low), d = finite_scale((*high - m) / static_cast<float>(top)),
              inverse = inverse_or_zero(d);
  for (int i = 0; i < kBlock; ++i) codes[i] = to_code((src[i] - m) * inverse + 0.5f, 0, top);
  return {to_half(d), to_half(m)};
}

HalfPair best_affine_codes(const float* src, const float* importance, int top, int* codes) {
  const Block<kBlock> b(src, importance);
  const auto n = static_cast<float>(top);
  const Affine fit = AffineFit<kBlock>(b.x, b.w, n, false).best();
  const HalfScale d = half_scale(fit.scale, b.unit), m = half_scale(fit.offset, b.unit);
  float q[kBlock];
  affine_codes<kBlock>(b.x, b.w, {d.value, m.value}, n, q);
  for (int i = 0; i < kBlock; ++i) codes[i] = static_cast<int>(q[i]);
  return {d.bits, m.bits};
}

// `block(src, importance, dst)` for every block of the row.
template <class Each>
void for_blocks(const float* src, int64_t elems, const EncodeOptions& o, Each block) {
  const float* importance = o.importance.empty() ? nullptr : o.importance.data();
  for (int64_t b = 0; b < elems; b += kBlock)
    block(src + b, importance == nullptr ? nullptr : importance + b, b / kBlock);
}

}  // namespace

// The largest magnitude becomes +-127. Codes use the scale before it is rounded to half. No search: the error
// is that of one code in 254, far below what a model shows.
void encode_q8_0(const float* src, int64_t elems, const EncodeOptions&, std::byte* dst) {
  for (int64_t b = 0; b < elems / kBlock; ++b, src += kBlock, dst += 34) {
    float largest = 0;
    for (int i = 0; i < kBlock; ++i) largest = std::max(largest, std::fabs(src[i]));
    const float d = finite_scale(largest / 127), inverse = inverse_or_zero(d);
    store_half(dst, d);
    for (int i = 0; i < kBlock; ++i) {
      dst[2 + i] = static_cast<std::byte>(to_code(std::round(src[i] * inverse), -127, 127));
    }
  }
}

void encode_q4_0(const float* src, int64_t elems, const EncodeOptions& o, std::byte* dst) {
  for_blocks(src, elems, o, [&](const float* x, const float* importance, int64_t b) {
    int codes[kBlock];
    std::byte* to = dst + b * 18;
    store(to,
          o.search == Search::kNearest ? nearest_scale_codes(x, 8, codes) : best_scale_codes(x, importance, 8, codes));
    pack_nibbles(codes, to + 2);
  });
}

void encode_q5_0(const float* src, int64_t elems, const EncodeOptions& o, std::byte* dst) {
  for_blocks(src, elems, o, [&](const float* x, const float* importance, int64_t b) {
    int codes[kBlock];
    std::byte* to = dst + b * 22;
    store(to, o.search == Search::kNearest ? nearest_scale_codes(x, 16, codes)
                                           : best_scale_codes(x, importance, 16, codes));
    const uint32_t fifth = pack_nibbles(codes, to + 6);
    std::memcpy(to + 2, &fifth, sizeof fifth);
  });
}

void encode_q4_1(const float* src, int64_t elems, const EncodeOptions& o, std::byte* dst) {
  for_blocks(src, elems, o, [&](const float* x, const float* importance, int64_t b) {
    int codes[kBlock];
    std::byte* to = dst + b * 20;
    const HalfPair s =
        o.search == Search::kNearest ? nearest_affine_codes(x, 15, codes) : best_affine_codes(x, importance, 15, codes);
    store(to, s.d);
    store(to + 2, s.m);
    pack_nibbles(codes, to + 4);
  });
}

void encode_q5_1(const float* src, int64_t elems, const EncodeOptions& o, std::byte* dst) {
  for_blocks(src, elems, o, [&](const float* x, const float* importance, int64_t b) {
    int codes[kBlock];
    std::byte* to = dst + b * 24;
    const HalfPair s =
        o.search == Search::kNearest ? nearest_affine_codes(x, 31, codes) : best_affine_codes(x, importance, 31, codes);
    store(to, s.d);
    store(to + 2, s.m);
    const uint32_t fifth = pack_nibbles(codes, to + 8);
    std::memcpy(to + 4, &fifth, sizeof fifth);
  });
}

}  // namespace quire::quant
