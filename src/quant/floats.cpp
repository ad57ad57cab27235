#include "quant/families.h"

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
