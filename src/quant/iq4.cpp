// Four-bit codes for values that are not spaced evenly (iq4.h), v = kIq4Values[n]. In groups of 32 elements,
// byte j holds element j in its low nibble and element j + 16 in its high nibble.
//   iq4_nl  half d, u8 qs[16]                                    32 elements:             d * v
//   iq4_xs  half d, u16 high, u8 low[4], u8 qs[8][16]            8 sub-blocks of 32:      d * (s - 32) * v
//           s has 6 bits: the lower four are nibble j of `low`, the upper two are bits 2 j, 2 j + 1 of `high`
// Encoder of iq4_nl: encode_iq4.cpp.
#include "quant/iq4.h"

#include "quant/block_bytes.h"
#include "quant/format_table.h"

namespace quire::quant {
namespace {

constexpr int kBlock = 32, kSuper = 256;

void decode_codes(const std::byte* qs, float scale, float* dst) {
  for (int j = 0; j < kBlock / 2; ++j) {
    const uint8_t byte = load_u8(qs + j);
    dst[j] = scale * kIq4Values[byte & 15];
    dst[j + 16] = scale * kIq4Values[byte >> 4];
  }
}

}  // namespace

void decode_iq4_nl(const std::byte* src, int64_t elems, float* dst) {
  for (int64_t b = 0; b < elems / kBlock; ++b, src += 18, dst += kBlock) decode_codes(src + 2, load_half(src), dst);
}

void decode_iq4_xs(const std::byte* src, int64_t elems, float* dst) {
  for (int64_t b = 0; b < elems / kSuper; ++b, src += 136, dst += kSuper) {
    const float d = load_half(src);
    const int high = load_u8(src + 2) | load_u8(src + 3) << 8;
    for (int j = 0; j < kSuper / kBlock; ++j) {
      const int low = load_u8(src + 4 + j / 2) >> (4 * (j % 2)) & 15;
      const int scale = low | (high >> (2 * j) & 3) << 4;
      decode_codes(src + 8 + 16 * j, d * static_cast<float>(scale - 32), dst + kBlock * j);
    }
  }
}

}  // namespace quire::quant
