// Super-blocks of 256 elements with quantised sub-block scales.
//   q2_k  u8 scales[16], u8 qs[64], half d, half dmin                16 sub-blocks of 16:  d sc q - dmin mn
//   q3_k  u8 qh[32], u8 qs[64], u8 scales[12], half d                16 sub-blocks of 16:  d (sc - 32) (q - 4)
//   q4_k  half d, half dmin, u8 scales[12], u8 qs[128]               8 sub-blocks of 32:   d sc q - dmin mn
//   q5_k  half d, half dmin, u8 scales[12], u8 qh[32], u8 qs[128]    the same with 5-bit q
//   q6_k  u8 ql[128], u8 qh[64], int8 scales[16], half d             16 sub-blocks of 16:  d sc (q - 32)
// Encoders of all but q2_k: encode_kquants.cpp, encode_scaled.cpp.
#include "quant/block_bytes.h"
#include "quant/format_table.h"

namespace quire::quant {
namespace {

constexpr int kSuper = 256;

struct ScaleMin {
  int scale, min;  // 6 bits each
};

// Twelve bytes hold eight scales and eight minima. Bytes 0-3 and 4-7 hold the low six bits of the first four
// of each; their top two bits are the upper bits of the last four, whose lower four bits share bytes 8-11.
ScaleMin unpack(const std::byte* s, int j) {
  auto at = [&](int k) { return static_cast<int>(load_u8(s + k)); };
  if (j < 4) return {at(j) & 63, at(j + 4) & 63};
  return {(at(j + 4) & 15) | (at(j - 4) >> 6 << 4), (at(j + 4) >> 4) | (at(j) >> 6 << 4)};
}

// Each group of 64 elements shares 32 bytes: the low nibbles are its first half, the high nibbles its second.
int nibble(const std::byte* qs, int i) {
  const int byte = load_u8(qs + i / 64 * 32 + i % 32);
  return i % 64 < 32 ? byte & 15 : byte >> 4;
}

// Two bits of each element: a half of 128 elements has 32 bytes, a group of 32 in it two bits of every byte.
int crumb(const std::byte* qs, int i) {
  return load_u8(qs + i / 128 * 32 + i % 32) >> (i % 128 / 32 * 2) & 3;
}

// Q3_K: twelve bytes hold sixteen scales of 6 bits. The nibbles of bytes 0-7 are the lower bits, low nibbles
// first; the upper two bits of four neighbouring scales are two bits of bytes 8-11.
int unpack_six(const std::byte* s, int j) {
  const int low = j < 8 ? load_u8(s + j) & 15 : load_u8(s + j - 8) >> 4;
  return low | (load_u8(s + 8 + j % 4) >> (j / 4 * 2) & 3) << 4;
}

}  // namespace

void decode_q2_k(const std::byte* src, int64_t elems, float* dst) {
  for (int64_t b = 0; b < elems / kSuper; ++b, src += 84, dst += kSuper) {
    const float d = load_half(src + 80), dmin = load_half(src + 82);
    for (int i = 0; i < kSuper; ++i) {
      const int both = load_u8(src + i / 16);  // scale below, minimum above
      dst[i] = d * static_cast<float>(both & 15) * static_cast<float>(crumb(src + 16, i)) -
               dmin * static_cast<float>(both >> 4);
    }
  }
}

void decode_q3_k(const std::byte* src, int64_t elems, float* dst) {
  for (int64_t b = 0; b < elems / kSuper; ++b, src += 110, dst += kSuper) {
    const float d = load_half(src + 108);
    for (int i = 0; i < kSuper; ++i) {
      const int third = load_u8(src + i % 32) >> (i / 32) & 1;
      const int q = crumb(src + 32, i) | third << 2;
      dst[i] = d * static_cast<float>(unpack_six(src + 96, i / 16) - 32) * static_cast<float>(q - 4);
    }
  }
}

void decode_q4_k(const std::byte* src, int64_t elems, float* dst) {
  for (int64_t b = 0; b < elems / kSuper; ++b, src += 144, dst += kSuper) {
    const float d = load_half(src), dmin = load_half(src + 2);
    for (int i = 0; i < kSuper; ++i) {
      const ScaleMin s = unpack(src + 4, i / 32);
      const int q = nibble(src + 16, i);
      dst[i] = d * static_cast<float>(s.scale) * static_cast<float>(q) - dmin * static_cast<float>(s.min);
    }
  }
}

void decode_q5_k(const std::byte* src, int64_t elems, float* dst) {
  for (int64_t b = 0; b < elems / kSuper; ++b, src += 176, dst += kSuper) {
    const float d = load_half(src), dmin = load_half(src + 2);
    for (int i = 0; i < kSuper; ++i) {
      const ScaleMin s = unpack(src + 4, i / 32);
      const int fifth = load_u8(src + 16 + i % 32) >> (i / 32) & 1;
      const int q = nibble(src + 48, i) | fifth << 4;
      dst[i] = d * static_cast<float>(s.scale) * static_cast<float>(q) - dmin * static_cast<float>(s.min);
    }
  }
}

void decode_q6_k(const std::byte* src, int64_t elems, float* dst) {
  for (int64_t b = 0; b < elems / kSuper; ++b, src += 210, dst += kSuper) {
    const std::byte *ql = src, *qh = src + 128, *scales = src + 192;
    const float d = load_half(src + 208);
    for (int i = 0; i < kSuper; ++i) {
      // Each half of 128 elements has four groups of 32: groups 0 and 2 share the nibbles of 32 bytes, so do
      // 1 and 3; all four share the 32 bytes of qh, two bits each.
      const int h = i / 128, g = i % 128 / 32, l = i % 32;
      const int byte = load_u8(ql + 64 * h + 32 * (g & 1) + l);
      const int low = g < 2 ? byte & 15 : byte >> 4;
      const int high = load_u8(qh + 32 * h + l) >> (2 * g) & 3;
      dst[i] = d * load_i8(scales + i / 16) * static_cast<float>((low | high << 4) - 32);
    }
  }
}

}  // namespace quire::quant
