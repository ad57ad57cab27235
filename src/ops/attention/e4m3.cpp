// E4M3 caches for the fast kernels: tokens become codes as they are written, and blocks bf16 again before they are
// read.
#include <bit>

#include "ops/attention/kernels.h"
#include "ops/attention/scale.h"

namespace quire::attention {
namespace {

// Codes that repeat their `period` scales (keys: 32 of 16 tokens in pairs; values: those of two tokens), `count` of
// them, as bf16. Written for the compiler to vectorise: no denormals, no table.
template <int kPeriod>
void widen(const e4m3* codes, int64_t count, const float* scales, bf16* to) {
  for (int64_t i = 0; i < count; i += kPeriod)
    for (int j = 0; j < kPeriod; ++j) {
      const uint32_t code = codes[i + j].bits, magnitude = code & 0x7fu;
      const float normal = std::bit_cast<float>((magnitude << 20) + 0x3c000000u);
      const float subnormal = static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-9f;
      const float x = (magnitude < 8 ? subnormal : normal) * scales[j];
      to[i + j].bits = static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16 | (code & 0x80u) << 8);
    }
}

}  // namespace

void widen_blocks(const RowTask& t, int64_t begin, int64_t end) {
  const int64_t elems = kBlockTokens * t.d;
  for (int64_t b = begin / kBlockTokens; b * kBlockTokens < end; ++b) {
    const NarrowBlocks& from = t.narrow;
    const e4m3* const k = from.k + from.blocks[b] * from.k_block;
    const e4m3* const v = from.v + from.blocks[b] * from.v_block;
    bf16* const keys = from.wide_k + t.blocks[b] * t.k_block;
    bf16* const values = from.wide_v + t.blocks[b] * t.v_block;
    float scales[2 * kBlockTokens];
    for (int i = 0; i < 2 * kBlockTokens; ++i) scales[i] = scale_of(k[elems + i / 2].bits);
    widen<2 * kBlockTokens>(k, elems, scales, keys);
    for (int pair = 0; pair < kBlockTokens / 2; ++pair) {
      float repeated[8];
      for (int i = 0; i < 8; ++i) repeated[i] = scale_of(v[elems + 2 * pair + i % 2].bits);
      const int64_t at = 2 * pair * t.d, whole = 2 * t.d / 8 * 8;
      widen<8>(v + at, whole, repeated, values + at);
      widen<2>(v + at + whole, 2 * t.d - whole, repeated, values + at + whole);
    }
  }
}

void write_codes(const bf16* tokens, int64_t pitch, int64_t count, int64_t d, bool keys, int64_t slot, e4m3* head) {
  for (int64_t t = slot; t < slot + count; ++t, tokens += pitch) {
    uint32_t largest = 0;
    for (int64_t c = 0; c < d; ++c) largest = std::max(largest, tokens[c].bits & 0x7fffu);
    const uint32_t scale = choose_scale(largest << 16);
    const float inverse = inverse_scale_of(scale);
    for (int64_t c = 0; c < d; ++c)
      head[keys ? key_offset(t, c) : value_offset(t, c, d)] = to_e4m3(to_float(tokens[c]) * inverse);
    head[kBlockTokens * d + t].bits = static_cast<uint8_t>(scale);
  }
}

}  // namespace quire::attention
