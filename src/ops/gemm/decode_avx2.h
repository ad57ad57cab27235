// Decoders of rows to float32 for the AVX2 core: what float32 tokens meet. Exactly what
// quant::decode_row gives: products of a scale and a code are exact in float32, so at most one operation
// rounds. Everything has internal linkage.
#pragma once

#include <immintrin.h>

#include "ops/gemm/sub_scales.h"
#include "quant/iq4.h"

namespace quire::gemm {
namespace {

inline __m128 half_at(const std::byte* at) {
  uint16_t h;
  std::memcpy(&h, at, 2);
  return _mm_cvtph_ps(_mm_cvtsi32_si128(h));
}
inline __m256i load32(const std::byte* at) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
}

// 16 signed bytes times `scale` less `minus`.
inline void widen16(__m128i bytes, float scale, float minus, float* to) {
  const __m256 s = _mm256_set1_ps(scale), m = _mm256_set1_ps(minus);
  for (int i = 0; i < 16; i += 8, bytes = _mm_unpackhi_epi64(bytes, bytes))
    _mm256_storeu_ps(to + i, _mm256_fmsub_ps(s, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)), m));
}
inline void widen16(__m128i bytes, float scale, float* to) {
  const __m256 s = _mm256_set1_ps(scale);
  for (int i = 0; i < 16; i += 8, bytes = _mm_unpackhi_epi64(bytes, bytes))
    _mm256_storeu_ps(to + i, _mm256_mul_ps(s, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes))));
}

// d times each of eight bytes less `bias`.
inline __m256 scaled_bytes(uint64_t bytes, int bias, __m256 d) {
  const __m256i wide = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<long long>(bytes)));
  return _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_sub_epi32(wide, _mm256_set1_epi32(bias))));
}

// Two bits of 32 bytes, from bit 2 g on: the codes of 32 elements.
inline __m256i crumbs(__m256i bytes, int g) {
  return _mm256_and_si256(_mm256_srl_epi16(bytes, _mm_cvtsi32_si128(2 * g)), _mm256_set1_epi8(3));
}

inline void decode_q2_k(const std::byte* from, int64_t cols, float* to) {
  for (int64_t k = 0; k < cols; k += 256, from += 84) {
    const __m256 d = _mm256_broadcastss_ps(half_at(from + 80)),
                 dmin = _mm256_broadcastss_ps(half_at(from + 82));
    alignas(32) float scales[16], minima[16];
    for (int j = 0; j < 16; j += 8) {
      uint64_t both;
      std::memcpy(&both, from + j, 8);
      constexpr uint64_t kFour = 0x0f0f'0f0f'0f0f'0f0f;
      _mm256_store_ps(scales + j, scaled_bytes(both & kFour, 0, d));
      _mm256_store_ps(minima + j, scaled_bytes(both >> 4 & kFour, 0, dmin));
    }
    for (int s = 0; s < 8; ++s, to += 32) {
      const __m256i q = crumbs(load32(from + 16 + s / 4 * 32), s % 4);
      widen16(_mm256_castsi256_si128(q), scales[2 * s], minima[2 * s], to);
      widen16(_mm256_extracti128_si256(q, 1), scales[2 * s + 1], minima[2 * s + 1], to + 16);
    }
  }
}

inline void decode_q3_k(const std::byte* from, int64_t cols, float* to) {
  const __m256i four = _mm256_set1_epi8(4);
  for (int64_t k = 0; k < cols; k += 256, from += 110) {
    const __m256 d = _mm256_broadcastss_ps(half_at(from + 108));
    const SixteenSixes sixes = q3_k_scales(from + 96);
    alignas(32) float scales[16];
    for (int j = 0; j < 2; ++j) _mm256_store_ps(scales + 8 * j, scaled_bytes(sixes.of[j], 32, d));
    const __m256i high = load32(from);
    for (int s = 0; s < 8; ++s, to += 32) {
      // Four is taken away where the third bit is not set.
      const __m256i third = _mm256_and_si256(_mm256_set1_epi8(static_cast<char>(1 << s)), high);
      const __m256i missing = _mm256_and_si256(_mm256_cmpeq_epi8(third, _mm256_setzero_si256()), four);
      const __m256i q = _mm256_sub_epi8(crumbs(load32(from + 32 + s / 4 * 32), s % 4), missing);
      widen16(_mm256_castsi256_si128(q), scales[2 * s], to);
      widen16(_mm256_extracti128_si256(q, 1), scales[2 * s + 1], to + 16);
    }
  }
}

// 32 elements, codes at `qs`.
inline void decode_iq4_codes(const std::byte* qs, float scale, float* to) {
  const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(quant::kIq4Values));
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(qs)), four = _mm_set1_epi8(15);
  widen16(_mm_shuffle_epi8(values, _mm_and_si128(bytes, four)), scale, to);
  widen16(_mm_shuffle_epi8(values, _mm_and_si128(_mm_srli_epi16(bytes, 4), four)), scale, to + 16);
}

inline void decode_iq4_nl(const std::byte* from, int64_t cols, float* to) {
  for (int64_t k = 0; k < cols; k += 32, from += 18, to += 32)
    decode_iq4_codes(from + 2, _mm_cvtss_f32(half_at(from)), to);
}

inline void decode_iq4_xs(const std::byte* from, int64_t cols, float* to) {
  for (int64_t k = 0; k < cols; k += 256, from += 136) {
    alignas(32) float scales[8];
    _mm256_store_ps(scales, scaled_bytes(iq4_xs_scales(from), 32, _mm256_broadcastss_ps(half_at(from))));
    for (int j = 0; j < 8; ++j, to += 32) decode_iq4_codes(from + 8 + 16 * j, scales[j], to);
  }
}

}  // namespace
}  // namespace quire::gemm
