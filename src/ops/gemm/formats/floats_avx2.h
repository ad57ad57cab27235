// BF16 and FP8 with AVX2, in the form that parts_avx2.h describes. Everything has internal linkage.
#pragma once

#include "core/float.h"
#include "ops/gemm/formats/parts_avx2.h"

namespace quire::gemm {
namespace {

inline void decode_bf16(const std::byte* from, int64_t cols, float* to) {
  int64_t i = 0;
  for (; i + 8 <= cols; i += 8) {
    const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 2 * i));
    _mm256_storeu_ps(to + i, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16)));
  }
  for (; i < cols; ++i) {
    bf16 v;
    std::memcpy(&v, from + 2 * i, 2);
    to[i] = to_float(v);
  }
}
template <>
struct OnAvx2<DType::kBF16> {
  static constexpr quant::Decoder kRows = decode_bf16;
};

// Codes of E4M3 where a half has sign, exponent and mantissa: 2^-8 of what they are, subnormals included. Codes that
// are no numbers become some: no weight has them.
inline __m256i e4m3_as_halves(__m128i codes) {
  const __m256i moved = _mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7);
  return _mm256_and_si256(moved, _mm256_set1_epi16(static_cast<int16_t>(0xbfff)));
}

inline void decode_fp8(const std::byte* from, int64_t cols, float* to) {
  for (int64_t k = 0; k < cols; k += 128, from += 132) {
    float scale;
    std::memcpy(&scale, from, 4);
    const __m256 s = _mm256_set1_ps(0x1p8f * scale);
    for (int i = 0; i < 128; i += 16, to += 16) {
      const __m256i halves = e4m3_as_halves(load16(from + 4 + i));
      _mm256_storeu_ps(to, _mm256_mul_ps(s, _mm256_cvtph_ps(_mm256_castsi256_si128(halves))));
      _mm256_storeu_ps(to + 8, _mm256_mul_ps(s, _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))));
    }
  }
}

template <>
struct OnAvx2<DType::kFP8> {
  static constexpr quant::Decoder kRows = decode_fp8;
};

}  // namespace
}  // namespace quire::gemm
