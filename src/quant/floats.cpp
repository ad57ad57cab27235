// Formats whose elements are floating-point numbers.
//   fp8  128 elements: float32 scale, u8 code[128] (E4M3)
#include "quant/block_bytes.h"
#include "quant/format_table.h"

namespace quire::quant {

void decode_f32(const std::byte* src, int64_t elems, float* dst) {
  std::memcpy(dst, src, static_cast<size_t>(elems) * sizeof(float));
}

void decode_f16(const std::byte* src, int64_t elems, float* dst) {
  for (int64_t i = 0; i < elems; ++i) dst[i] = load_half(src + 2 * i);
}

void decode_bf16(const std::byte* src, int64_t elems, float* dst) {
  for (int64_t i = 0; i < elems; ++i) {
    bf16 x;
    std::memcpy(&x.bits, src + 2 * i, sizeof x.bits);
    dst[i] = to_float(x);
  }
}

// A product of 4 and up to 24 significant bits: rounded to float32 once, and not at all where the scale has 20.
void decode_fp8(const std::byte* src, int64_t elems, float* dst) {
  constexpr int64_t kBlock = 128;
  for (int64_t b = 0; b < elems / kBlock; ++b, src += sizeof(float) + kBlock, dst += kBlock) {
    float scale;
    std::memcpy(&scale, src, sizeof scale);
    for (int64_t i = 0; i < kBlock; ++i) dst[i] = to_float(e4m3{load_u8(src + sizeof scale + i)}) * scale;
  }
}

void encode_f32(const float* src, int64_t elems, const EncodeOptions&, std::byte* dst) {
  std::memcpy(dst, src, static_cast<size_t>(elems) * sizeof(float));
}

void encode_f16(const float* src, int64_t elems, const EncodeOptions&, std::byte* dst) {
  for (int64_t i = 0; i < elems; ++i) store_half(dst + 2 * i, src[i]);
}

void encode_bf16(const float* src, int64_t elems, const EncodeOptions&, std::byte* dst) {
  for (int64_t i = 0; i < elems; ++i) {
    const bf16 x = to_bf16(src[i]);
    std::memcpy(dst + 2 * i, &x.bits, sizeof x.bits);
  }
}

}  // namespace quire::quant
