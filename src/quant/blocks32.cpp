// Blocks of 32 elements with a half-precision scale. The 4-bit codes are split in halves, not interleaved:
// byte j holds element j in its low nibble and element j + 16 in its high nibble.
//   q8_0  half d, int8 q[32]                    d * q
//   q4_0  half d, u8 qs[16]                     d * (n - 8)
//   q4_1  half d, half m, u8 qs[16]             d * n + m
//   q5_0  half d, u32 qh, u8 qs[16]             d * (n + 16 h - 16)     h = bit i of qh
//   q5_1  half d, half m, u32 qh, u8 qs[16]     d * (n + 16 h) + m
#include <algorithm>
#include <cmath>

#include "quant/families.h"

namespace quire::quant {
namespace {

constexpr int kBlock = 32;

int nibble(const std::byte* qs, int i) {
  return i < 16 ? load_u8(qs + i) & 15 : load_u8(qs + i - 16) >> 4;
}
// In this form NaN becomes `low`; converting it to an integer would be undefined.
int to_code(float x, int low, int high) {
  return x > static_cast<float>(low) ? static_cast<int>(std::min(x, static_cast<float>(high))) : low;
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
    for (int i = 0; i < kBlock; ++i)
      dst[i] = d * static_cast<float>((nibble(src + 6, i) | fifth_bit(qh, i)) - 16);
  }
}

void decode_q5_1(const std::byte* src, int64_t elems, float* dst) {
  for (int64_t b = 0; b < elems / kBlock; ++b, src += 24, dst += kBlock) {
    const float d = load_half(src), m = load_half(src + 2);
    const uint32_t qh = load_u32(src + 4);
    for (int i = 0; i < kBlock; ++i)
      dst[i] = d * static_cast<float>(nibble(src + 8, i) | fifth_bit(qh, i)) + m;
  }
}

// The largest magnitude becomes +-127. Codes use the scale before it is rounded to half.
void encode_q8_0(const float* src, int64_t elems, std::byte* dst) {
  for (int64_t b = 0; b < elems / kBlock; ++b, src += kBlock, dst += 34) {
    float largest = 0;
    for (int i = 0; i < kBlock; ++i) largest = std::max(largest, std::fabs(src[i]));
    const float d = largest / 127, inverse = d > 0 ? 1 / d : 0;
    store_half(dst, d);
    for (int i = 0; i < kBlock; ++i) {
      dst[2 + i] = static_cast<std::byte>(to_code(std::round(src[i] * inverse), -127, 127));
    }
  }
}

// The element of largest magnitude becomes code 0, value -8 d, whatever its sign: d takes the opposite sign.
void encode_q4_0(const float* src, int64_t elems, std::byte* dst) {
  for (int64_t b = 0; b < elems / kBlock; ++b, src += kBlock, dst += 18) {
    float largest = 0;
    for (int i = 0; i < kBlock; ++i)
      if (std::fabs(src[i]) > std::fabs(largest)) largest = src[i];
    const float d = largest / -8, inverse = d != 0 ? 1 / d : 0;
    store_half(dst, d);
    auto code = [&](int i) { return to_code(src[i] * inverse + 8.5f, 0, 15); };
    for (int j = 0; j < 16; ++j) dst[2 + j] = static_cast<std::byte>(code(j) | code(j + 16) << 4);
  }
}

}  // namespace quire::quant
