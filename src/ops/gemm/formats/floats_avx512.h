// BF16 and FP8 with AVX-512, in the form that parts_avx512.h describes. Everything has internal linkage.
#pragma once

#include "ops/gemm/formats/parts_avx512.h"

namespace quire::gemm {
namespace {

// FP8: 128 weights in 132 bytes: a float and 128 codes of E4M3. A code moved to where a half has sign, exponent and
// mantissa is 2^-8 of what it is, subnormals included; no weight has codes that are no numbers.
struct Fp8 {
  static constexpr int64_t kColumns = 128, kBytes = 132;
  void row(const std::byte* block, int64_t count, uint16_t* to, int64_t step) const {
    for (int64_t k = 0; k < count; k += 128, block += kBytes) {
      float factor;
      std::memcpy(&factor, block, 4);
      const __m512 scale = _mm512_set1_ps(0x1p8f * factor);
      for (int i = 0; i < 128; i += 32, to += step) {
        const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block + 4 + i));
        const __m512i halves = _mm512_and_si512(_mm512_slli_epi16(_mm512_cvtepi8_epi16(codes), 7), sign_and_rest_);
        const __m512 low = _mm512_cvtph_ps(_mm512_castsi512_si256(halves));
        const __m512 high = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1));
        _mm512_store_si512(to, (__m512i)_mm512_cvtne2ps_pbh(_mm512_mul_ps(high, scale), _mm512_mul_ps(low, scale)));
      }
    }
  }

 private:
  __m512i sign_and_rest_ = kept(_mm512_set1_epi16(static_cast<short>(0xbfff)));
};

template <>
struct OnAvx512<DType::kFP8> {
  using Rows = Fp8;
};

struct Bf16 {
  static constexpr int64_t kColumns = 1, kBytes = 2;
  void row(const std::byte* block, int64_t count, uint16_t* to, int64_t step) const {
    const int64_t full = count / 32, rest = count % 32;
    for (int64_t s = 0; s < full; ++s, block += 64, to += step) _mm512_store_si512(to, _mm512_loadu_si512(block));
    if (rest > 0) _mm512_store_si512(to, _mm512_maskz_loadu_epi16((1u << rest) - 1u, block));
  }
};

template <>
struct OnAvx512<DType::kBF16> {
  using Rows = Bf16;
};

}  // namespace
}  // namespace quire::gemm
