// The decoders and encoders behind format.h, one file per family. elems is a multiple of the block size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/float.h"
#include "quant/format.h"

namespace quire::quant {

// Blocks are not aligned; these load and store what lies at any address.
inline float load_half(const std::byte* at) {
  half h;
  std::memcpy(&h.bits, at, sizeof h.bits);
  return to_float(h);
}
inline void store_half(std::byte* at, float x) {
  const half h = to_half(x);
  std::memcpy(at, &h.bits, sizeof h.bits);
}
inline uint8_t load_u8(const std::byte* at) {
  return static_cast<uint8_t>(*at);
}
inline int8_t load_i8(const std::byte* at) {
  return static_cast<int8_t>(*at);
}
inline uint32_t load_u32(const std::byte* at) {
  uint32_t x;
  std::memcpy(&x, at, sizeof x);
  return x;
}

using Decoder = void (*)(const std::byte* src, int64_t elems, float* dst);
using Encoder = void (*)(const float* src, int64_t elems, const EncodeOptions& options, std::byte* dst);

// floats.cpp
void decode_fp8(const std::byte* src, int64_t elems, float* dst);
void decode_f32(const std::byte* src, int64_t elems, float* dst);
void decode_f16(const std::byte* src, int64_t elems, float* dst);
void decode_bf16(const std::byte* src, int64_t elems, float* dst);
void encode_f32(const float* src, int64_t elems, const EncodeOptions& options, std::byte* dst);
void encode_f16(const float* src, int64_t elems, const EncodeOptions& options, std::byte* dst);
void encode_bf16(const float* src, int64_t elems, const EncodeOptions& options, std::byte* dst);

// blocks32.cpp, encode_blocks32.cpp
void decode_q8_0(const std::byte* src, int64_t elems, float* dst);
void decode_q4_0(const std::byte* src, int64_t elems, float* dst);
void decode_q4_1(const std::byte* src, int64_t elems, float* dst);
void decode_q5_0(const std::byte* src, int64_t elems, float* dst);
void decode_q5_1(const std::byte* src, int64_t elems, float* dst);
void encode_q8_0(const float* src, int64_t elems, const EncodeOptions& options, std::byte* dst);
void encode_q4_0(const float* src, int64_t elems, const EncodeOptions& options, std::byte* dst);
void encode_q4_1(const float* src, int64_t elems, const EncodeOptions& options, std::byte* dst);
void encode_q5_0(const float* src, int64_t elems, const EncodeOptions& options, std::byte* dst);
void encode_q5_1(const float* src, int64_t elems, const EncodeOptions& options, std::byte* dst);

// kquants.cpp, encode_kquants.cpp, encode_scaled.cpp
void decode_q2_k(const std::byte* src, int64_t elems, float* dst);
void decode_q3_k(const std::byte* src, int64_t elems, float* dst);
void decode_q4_k(const std::byte* src, int64_t elems, float* dst);
void decode_q5_k(const std::byte* src, int64_t elems, float* dst);
void decode_q6_k(const std::byte* src, int64_t elems, float* dst);
void encode_q3_k(const float* src, int64_t elems, const EncodeOptions& options, std::byte* dst);
void encode_q4_k(const float* src, int64_t elems, const EncodeOptions& options, std::byte* dst);
void encode_q5_k(const float* src, int64_t elems, const EncodeOptions& options, std::byte* dst);
void encode_q6_k(const float* src, int64_t elems, const EncodeOptions& options, std::byte* dst);

// iq4.cpp, encode_iq4.cpp
void decode_iq4_nl(const std::byte* src, int64_t elems, float* dst);
void decode_iq4_xs(const std::byte* src, int64_t elems, float* dst);
void encode_iq4_nl(const float* src, int64_t elems, const EncodeOptions& options, std::byte* dst);

// fp4.cpp, encode_fp4.cpp
void decode_mxfp4(const std::byte* src, int64_t elems, float* dst);
void decode_nvfp4(const std::byte* src, int64_t elems, float* dst);
void encode_mxfp4(const float* src, int64_t elems, const EncodeOptions& options, std::byte* dst);
void encode_nvfp4(const float* src, int64_t elems, const EncodeOptions& options, std::byte* dst);

}  // namespace quire::quant
