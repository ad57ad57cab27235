// Decoders of Q2_K, Q3_K, IQ4_NL and IQ4_XS, in the form that formats_avx512.h describes: by way of float32,
// rounded once. Everything has internal linkage.
#pragma once

#include "ops/gemm/lookup_avx512.h"
#include "ops/gemm/sub_scales.h"
#include "quant/iq4.h"

namespace quire::gemm {
namespace {

// d times each of eight bytes less `bias`.
inline __m256 scaled_bytes(uint64_t bytes, int bias, __m512 d) {
  const __m256i wide = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<long long>(bytes)));
  return _mm256_mul_ps(_mm512_castps512_ps256(d), _mm256_cvtepi32_ps(_mm256_sub_epi32(wide, _mm256_set1_epi32(bias))));
}

// 32 signed bytes: the first 16 times slope[0] plus offset[0], the others times slope[1] plus offset[1].
inline __m512i two_sixteens(__m256i bytes, const float* slope, const float* offset) {
  const auto widen = [&](__m128i q, int i) {
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(q)), _mm512_set1_ps(slope[i]),
                           _mm512_set1_ps(offset[i]));
  };
  return (__m512i)_mm512_cvtne2ps_pbh(widen(_mm256_extracti128_si256(bytes, 1), 1),
                                      widen(_mm256_castsi256_si128(bytes), 0));
}

// Two bits of 32 bytes, from bit 2 g on: the codes of 32 weights.
inline __m256i crumbs(const std::byte* bytes, int g) {
  const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes));
  return _mm256_and_si256(_mm256_srl_epi16(b, _mm_cvtsi32_si128(2 * g)), _mm256_set1_epi8(3));
}

// Q2_K: 256 weights of 2 bits in 16 sub-blocks: 16 bytes of a scale and a minimum, 64 of codes, d and dmin.
struct Q2K {
  static constexpr int64_t kColumns = 256, kBytes = 84;
  void row(const std::byte* block, int64_t count, uint16_t* to, int64_t step) const {
    alignas(32) float slope[16], offset[16];
    for (int64_t k = 0; k < count; k += 256, block += kBytes) {
      const __m512 d = broadcast_half(block + 80);
      const __m512 minus_dmin = _mm512_sub_ps(_mm512_setzero_ps(), broadcast_half(block + 82));
      for (int j = 0; j < 16; j += 8) {
        constexpr uint64_t kFour = 0x0f0f'0f0f'0f0f'0f0f;
        uint64_t both;
        std::memcpy(&both, block + j, 8);
        _mm256_store_ps(slope + j, scaled_bytes(both & kFour, 0, d));
        _mm256_store_ps(offset + j, scaled_bytes(both >> 4 & kFour, 0, minus_dmin));
      }
      for (int s = 0; s < 8; ++s, to += step)
        _mm512_store_si512(to, two_sixteens(crumbs(block + 16 + s / 4 * 32, s % 4), slope + 2 * s, offset + 2 * s));
    }
  }
};

// Q3_K: 256 weights of 3 bits in 16 sub-blocks: 32 bytes of third bits, 64 of the other two, 12 of scales, d.
struct Q3K {
  static constexpr int64_t kColumns = 256, kBytes = 110;
  void row(const std::byte* block, int64_t count, uint16_t* to, int64_t step) const {
    static constexpr float kNone[2] = {0.0f, 0.0f};
    alignas(32) float slope[16];
    for (int64_t k = 0; k < count; k += 256, block += kBytes) {
      const __m512 d = broadcast_half(block + 108);
      const SixteenSixes sixes = q3_k_scales(block + 96);
      for (int j = 0; j < 2; ++j) _mm256_store_ps(slope + 8 * j, scaled_bytes(sixes.of[j], 32, d));
      const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block));
      for (int s = 0; s < 8; ++s, to += step) {
        const __mmask32 third = _mm256_test_epi8_mask(high, _mm256_set1_epi8(static_cast<char>(1 << s)));
        const __m256i q = crumbs(block + 32 + s / 4 * 32, s % 4);
        const __m256i less = _mm256_mask_sub_epi8(q, ~third, q, _mm256_set1_epi8(4));
        _mm512_store_si512(to, two_sixteens(less, slope + 2 * s, kNone));
      }
    }
  }
};

// What a code of IQ4_NL and IQ4_XS stands for.
inline __m512 iq4_values() {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(quant::kIq4Values));
  return kept(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)));
}

// IQ4_NL: 32 weights in 18 bytes: a half d, 16 bytes of codes.
struct Iq4Nl {
  static constexpr int64_t kColumns = 32, kBytes = 18;
  void row(const std::byte* block, int64_t count, uint16_t* to, int64_t step) const {
    for (int64_t k = 0; k < count; k += 32, block += kBytes, to += step)
      _mm512_store_si512(to,
                         look_up(codes.index(block + 2), table16(values, broadcast_half(block), _mm512_setzero_ps())));
  }

 private:
  Nibbles codes{kSplitHalves};
  __m512 values = iq4_values();
};

// IQ4_XS: 256 weights in 8 sub-blocks: a half d, 6 bytes of scales, 8 times 16 bytes of codes.
struct Iq4Xs {
  static constexpr int64_t kColumns = 256, kBytes = 136;
  void row(const std::byte* block, int64_t count, uint16_t* to, int64_t step) const {
    alignas(32) float slope[8];
    for (int64_t k = 0; k < count; k += 256, block += kBytes) {
      _mm256_store_ps(slope, scaled_bytes(iq4_xs_scales(block), 32, broadcast_half(block)));
      for (int j = 0; j < 8; ++j, to += step)
        _mm512_store_si512(to, look_up(codes.index(block + 8 + 16 * j),
                                       table16(values, _mm512_set1_ps(slope[j]), _mm512_setzero_ps())));
    }
  }

 private:
  Nibbles codes{kSplitHalves};
  __m512 values = iq4_values();
};

}  // namespace
}  // namespace quire::gemm
