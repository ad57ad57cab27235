// Blocks of 32 elements with a half-precision scale. The 4-bit codes are split in halves, not interleaved:
// byte j holds element j in its low nibble and element j + 16 in its high nibble.
//   q8_0  half d, int8 q[32]                    d * q
//   q4_0  half d, u8 qs[16]                     d * (n - 8)
//   q4_1  half d, half m, u8 qs[16]             d * n + m
//   q5_0  half d, u32 qh, u8 qs[16]             d * (n + 16 h - 16)     h = bit i of qh
//   q5_1  half d, half m, u32 qh, u8 qs[16]     d * (n + 16 h) + m
// Encoders: encode_blocks32.cpp.
#include "quant/block_bytes.h"
#include "quant/format_table.h"

namespace quire::quant {
namespace {

constexpr int kBlock = 32;

int nibble(const std::byte* qs, int i) {
  return i < 16 ? load_u8(qs + i) & 15 : load_u8(qs + i - 16) >> 4;
}
int fifth_bit(uint32_t qh, int i) {
  return static_cast<int>(qh >> i & 1) << 4;
}

}  // namespace

void decode_q8_0(const std::byte* src, int64_t elems, float* dst) {
  for (int64_t b = 0; b < elems / kBlock; ++b, src += 34, dst += kBlock) {
    const float d = load_half(src);
    for (int i = 0; i < kBlock; ++i) dst[i] = d * load_i8(src + 2 + i);
  }
}

void decode_q4_0(const std::byte* src, int64_t elems, float* dst) {
  for (int64_t b = 0; b < elems / kBlock; ++b, src += 18, dst += kBlock) {
    const float d = load_half(src);
    for (int i = 0; i < kBlock; ++i) dst[i] = d * static_cast<float>(nibble(src + 2, i) - 8);
  }
}

void decode_q4_1(const std::byte* src, int64_t elems, float* dst) {
  for (int64_t b = 0; b < elems / kBlock; ++b, src += 20, dst += kBlock) {
    const float d = load_half(src), m = load_half(src + 2);
    for (int i = 0; i < kBlock; ++i) dst[i] = d * static_cast<float>(nibble(src + 4, i)) + m;
  }
}

void decode_q5_0(const std::byte* src, int64_t elems, float* dst) {
  for (int64_t b = 0; b < elems / kBlock; ++b, src += 22, dst += kBlock) {
    const float d = load_half(src);
    const uint32_t qh = load_u32(src + 2);
    for (int i = 0; i < kBlock; ++i) dst[i] = d * static_cast<float>((nibble(src + 6, i) | fifth_bit(qh, i)) - 16);
  }
}

void decode_q5_1(const std::byte* src, int64_t elems, float* dst) {
  for (int64_t b = 0; b < elems / kBlock; ++b, src += 24, dst += kBlock) {
    const float d = load_half(src), m = load_half(src + 2);
    const uint32_t qh = load_u32(src + 4);
    for (int i = 0; i < kBlock; ++i) dst[i] = d * static_cast<float>(nibble(src + 8, i) | fifth_bit(qh, i)) + m;
  }
}

}  // namespace quire::quant
