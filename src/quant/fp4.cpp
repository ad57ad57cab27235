// The 4-bit floating-point formats. Codes are E2M1; nibbles are split in halves of the block that shares a
// scale.
//   mxfp4  32 elements: u8 e (E8M0), u8 qs[16]               low nibble of byte j: element j, high: j + 16
//   nvfp4  64 elements: u8 d[4] (UE4M3), u8 qs[32]           4 sub-blocks of 16, 8 bytes each: elements j and
//   j + 8
#include "quant/fp4.h"

#include <algorithm>
#include <cmath>

#include "quant/families.h"
#include "quant/format.h"

namespace quire::quant {
namespace {

// `half` bytes hold 2*half elements, all times `scale`.
void decode_codes(const std::byte* qs, int half_count, float scale, float* dst) {
  for (int j = 0; j < half_count; ++j) {
    dst[j] = decode_e2m1(load_u8(qs + j) & 15) * scale;
    dst[j + half_count] = decode_e2m1(load_u8(qs + j) >> 4) * scale;
  }
}

void encode_codes(const float* src, int half_count, float scale, std::byte* qs) {
  auto code = [&](int i) { return encode_e2m1(scale > 0 ? src[i] / scale : 0); };
  for (int j = 0; j < half_count; ++j) qs[j] = static_cast<std::byte>(code(j) | code(j + half_count) << 4);
}

double squared_error(const float* src, int count, float scale) {
  double sum = 0;
  for (int i = 0; i < count; ++i) {
    const double e = src[i] - decode_e2m1(encode_e2m1(scale > 0 ? src[i] / scale : 0)) * scale;
    sum += e * e;
  }
  return sum;
}

float max_magnitude(const float* src, int64_t count) {
  float largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, std::fabs(src[i]));
  return largest;
}

constexpr int kSub = 16;  // elements per NVFP4 scale

// Encodes blocks of 64 with the sub-block scale codes that choose(16 elements) returns, times tensor_scale.
template <class Choose>
void encode_nvfp4_blocks(const float* src, int64_t elems, float tensor_scale, std::byte* dst, Choose choose) {
  for (int64_t b = 0; b < elems / 64; ++b, dst += 36) {
    for (int s = 0; s < 4; ++s, src += kSub) {
      const uint8_t code = choose(src);
      dst[s] = static_cast<std::byte>(code);
      encode_codes(src, kSub / 2, decode_ue4m3(code) * tensor_scale, dst + 4 + 8 * s);
    }
  }
}

}  // namespace

void decode_mxfp4(const std::byte* src, int64_t elems, float* dst) {
  for (int64_t b = 0; b < elems / 32; ++b, src += 17, dst += 32)
    decode_codes(src + 1, 16, decode_e8m0(load_u8(src)), dst);
}

void decode_nvfp4(const std::byte* src, int64_t elems, float* dst) {
  for (int64_t b = 0; b < elems / 64; ++b, src += 36)
    for (int s = 0; s < 4; ++s, dst += kSub)
      decode_codes(src + 4 + 8 * s, kSub / 2, decode_ue4m3(load_u8(src + s)), dst);
}

// The power of two that puts the largest magnitude into [4, 8): between 6 and 8 it is clipped to 6.
void encode_mxfp4(const float* src, int64_t elems, std::byte* dst) {
  for (int64_t b = 0; b < elems / 32; ++b, src += 32, dst += 17) {
    const float largest = max_magnitude(src, 32);
    const int exponent = static_cast<int>(std::bit_cast<uint32_t>(largest) >> 23);  // biased by 127, as e is
    const int e = std::max(0, exponent - 2);
    *dst = static_cast<std::byte>(e);
    encode_codes(src, 16, decode_e8m0(static_cast<uint8_t>(e)), dst + 1);
  }
}

void encode_nvfp4(const float* src, int64_t elems, std::byte* dst) {
  encode_nvfp4_blocks(src, elems, 1.0f, dst,
                      [](const float* x) { return encode_ue4m3(max_magnitude(x, kSub) / kE2m1Max); });
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

void encode_nvfp4_scaled(const float* src, int64_t elems, float tensor_scale, std::byte* dst) {
  QUIRE_CHECK(tensor_scale > 0, "tensor scale {}", tensor_scale);
  encode_nvfp4_blocks(src, elems, tensor_scale, dst, [&](const float* x) -> uint8_t {
    const float largest = max_magnitude(x, kSub);
    if (largest == 0) return 0;
    const int nearest = encode_ue4m3(largest / (kE2m1Max * tensor_scale));
    // Not from the lowest code up: on equal errors the nearest code should win.
    int best = nearest;
    double least = squared_error(x, kSub, decode_ue4m3(static_cast<uint8_t>(best)) * tensor_scale);
    for (const int step : {-1, 1, -2, 2}) {
      const int code = nearest + step;
      if (code < 0 || code > 0x7e) continue;
      const double error = squared_error(x, kSub, decode_ue4m3(static_cast<uint8_t>(code)) * tensor_scale);
      if (error < least) {
        least = error;
        best = code;
      }
    }
    return static_cast<uint8_t>(best);
  });
}

}  // namespace quire::quant
