// Decoders of Q4_K, Q5_K and Q6_K, in the form that formats_avx512.h describes. Everything has internal
// linkage.
#pragma once

#include "ops/gemm/lookup_avx512.h"

namespace quire::gemm {
namespace {

// Q4_K and Q5_K: 256 weights in 8 sub-blocks with scales and minima of 6 bits, packed in 12 bytes.
struct SubScales {
  alignas(32) float slope[8];   // d * scale
  alignas(32) float offset[8];  // -dmin * minimum
};
inline void load_sub_scales(const std::byte* block, SubScales& s) {
  uint32_t u[3];
  std::memcpy(u, block + 4, 12);
  const uint32_t six = 0x3f3f3f3f, four = 0x0f0f0f0f, top = 0x30303030;
  const uint64_t scales = (u[0] & six) | static_cast<uint64_t>((u[2] & four) | (u[0] >> 2 & top)) << 32;
  const uint64_t minima = (u[1] & six) | static_cast<uint64_t>((u[2] >> 4 & four) | (u[1] >> 2 & top)) << 32;
  const auto widen = [](uint64_t v) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<long long>(v))));
  };
  const __m256 d = _mm512_castps512_ps256(broadcast_half(block));
  const __m256 dmin = _mm512_castps512_ps256(broadcast_half(block + 2));
  _mm256_store_ps(s.slope, _mm256_mul_ps(d, widen(scales)));
  _mm256_store_ps(s.offset, _mm256_sub_ps(_mm256_setzero_ps(), _mm256_mul_ps(dmin, widen(minima))));
}

template <bool kFifthBit>
struct Q45K {
  static constexpr int64_t kColumns = 256, kBytes = kFifthBit ? 176 : 144;
  void row(const std::byte* block, int64_t count, uint16_t* to, int64_t step) const {
    const __m512i code = kept(_mm512_set1_epi8(30)), even = kept(_mm512_set1_epi16(0x0100));
    const __m512i second = kept(_mm512_set1_epi16(0x2120)), fifth = kept(_mm512_set1_epi8(32));
    const __m512 low = counting(0), high = counting(16);
    SubScales s;
    for (int64_t k = 0; k < count; k += 256, block += kBytes) {
      load_sub_scales(block, s);
      // Bit j of a byte is the fifth bit of sub-block j: turned so that sub-block 0's is bit 5.
      __m512i bits = _mm512_setzero_si512();
      if (kFifthBit) bits = doubled.load(block + 16), bits = _mm512_shldi_epi16(bits, bits, 5);
      for (int j = 0; j < 8; j += 2, to += 2 * step) {  // 32 bytes hold the codes of two sub-blocks
        const __m512i c = doubled.load(block + kBytes - 128 + j * 16);
        const __m512i c0 = _mm512_slli_epi16(c, 1), c1 = _mm512_srli_epi16(c, 3);
        const auto slope = [&](int i) { return _mm512_set1_ps(s.slope[j + i]); };
        const auto offset = [&](int i) { return _mm512_set1_ps(s.offset[j + i]); };
        __m512i index0 = _mm512_ternarylogic_epi64(c0, code, even, 0xEA);  // (c0 & code) | even
        if constexpr (kFifthBit) {
          __m512i index1 = _mm512_ternarylogic_epi64(c1, code, even, 0xEA);
          index0 = _mm512_ternarylogic_epi64(fifth, bits, index0, 0xCA);  // fifth ? bits : index0
          bits = _mm512_shldi_epi16(bits, bits, 15);
          index1 = _mm512_ternarylogic_epi64(fifth, bits, index1, 0xCA);
          bits = _mm512_shldi_epi16(bits, bits, 15);
          _mm512_store_si512(to, look_up(index0, table32(low, high, slope(0), offset(0))));
          _mm512_store_si512(to + step, look_up(index1, table32(low, high, slope(1), offset(1))));
        } else {
          const __m512i index1 = _mm512_ternarylogic_epi64(c1, code, second, 0xEA);
          const __m512i table = (__m512i)_mm512_cvtne2ps_pbh(_mm512_fmadd_ps(low, slope(1), offset(1)),
                                                             _mm512_fmadd_ps(low, slope(0), offset(0)));
          _mm512_store_si512(to, look_up(index0, table));
          _mm512_store_si512(to + step, look_up(index1, table));
        }
      }
    }
  }

 private:
  Doubled doubled;
};

// Q6_K: 256 weights of 6 bits: 128 bytes with the low four of each, 64 with the upper two, 16 signed scales,
// d.
struct alignas(64) ScalePairs {
  uint8_t index[8][64];  // of the bytes of scale 2 i for 16 weights, then of scale 2 i + 1
  constexpr ScalePairs() : index{} {
    for (int i = 0; i < 8; ++i)
      for (int b = 0; b < 64; ++b) index[i][b] = static_cast<uint8_t>(4 * i + b / 32 * 2 + b % 2);
  }
};
constexpr ScalePairs kScalePairs;

struct Q6K {
  static constexpr int64_t kColumns = 256, kBytes = 210;
  void row(const std::byte* block, int64_t count, uint16_t* to, int64_t step) const {
    for (int64_t k = 0; k < count; k += 256, block += kBytes, to += 8 * step) {
      const __m128i sc = _mm_loadu_si128(reinterpret_cast<const __m128i*>(block + 192));
      const __m512 scales = _mm512_mul_ps(broadcast_half(block + 208), _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(sc)));
      __m512i codes[4];
      load_codes(block, block + 128, codes);
      load_codes(block + 64, block + 160, codes + 2);
#ifdef __AVX512FP16__
      // 64 times the scales as halves: from 2^-14 to 8, or zero, the products are zero or normal.
      const __m256i half_scales = _mm512_cvtps_ph(_mm512_mul_ps(scales, up), _MM_FROUND_TO_NEAREST_INT);
      const __m256i size = _mm256_and_si256(half_scales, _mm512_castsi512_si256(magnitude));
      const __mmask16 odd = _mm256_cmp_epu16_mask(_mm256_sub_epi16(size, lowest), range, _MM_CMPINT_NLT);
      if (_mm256_mask_test_epi16_mask(odd, size, size) == 0) [[likely]] {
        from_halves(codes, _mm512_castsi256_si512(half_scales), to, step);
        continue;
      }
#endif
      from_floats(codes, scales, to, step);
    }
  }

 private:
  // Codes less 32 of 128 weights, as bytes.
  void load_codes(const std::byte* low, const std::byte* high, __m512i codes[2]) const {
    const __m512i lo = _mm512_loadu_si512(low);
    const __m512i hi = _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(high)));
    const auto joined = [&](__m512i l, __m512i h) {  // upper ? h : (l & nibble)
      return _mm512_sub_epi8(_mm512_ternarylogic_epi64(upper, h, _mm512_and_si512(l, nibble), 0xCA), middle);
    };
    // Two bits of a byte for each 32 weights; they are moved to bits 4 and 5.
    codes[0] = joined(lo, _mm512_sllv_epi16(hi, left));
    codes[1] = joined(_mm512_srli_epi16(lo, 4), _mm512_srlv_epi16(hi, right));
  }
  static void from_floats(const __m512i codes[4], __m512 scales, uint16_t* to, int64_t step) {
    alignas(64) float s[16];
    alignas(64) std::byte q[256];
    _mm512_store_ps(s, scales);
    for (int i = 0; i < 4; ++i) _mm512_store_si512(q + 64 * i, codes[i]);
    const auto widen = [&](int i) {
      const __m128i q16 = _mm_load_si128(reinterpret_cast<const __m128i*>(q + 16 * i));
      return _mm512_mul_ps(_mm512_set1_ps(s[i]), _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(q16)));
    };
    for (int i = 0; i < 8; ++i)
      _mm512_store_si512(to + i * step, (__m512i)_mm512_cvtne2ps_pbh(widen(2 * i + 1), widen(2 * i)));
  }
#ifdef __AVX512FP16__
  void from_halves(const __m512i codes[4], __m512i scales, uint16_t* to, int64_t step) const {
    for (int i = 0; i < 8; ++i) {
      const __m512i q = i % 2 == 0 ? doubled.high(codes[i / 2]) : doubled.high_of_second(codes[i / 2]);
      const __m512i scale = _mm512_permutexvar_epi8(_mm512_load_si512(kScalePairs.index[i]), scales);
      const __m512h product = _mm512_mul_ph(_mm512_cvtepi16_ph(q), (__m512h)scale);
      const __mmask32 not_zero = _mm512_test_epi16_mask((__m512i)product, magnitude);
      _mm512_store_si512(to + i * step, halves.to_bf16(not_zero, product));
    }
  }
  Halves<14> halves;
  Doubled doubled;
  __m512i magnitude = kept(_mm512_set1_epi16(0x7fff));
  __m256i lowest = kept(_mm256_set1_epi16(0x0400)), range = kept(_mm256_set1_epi16(0x4800 - 0x0400));
  __m512 up = kept(_mm512_set1_ps(64.0f));
#endif
  __m512i nibble = kept(_mm512_set1_epi8(15)), upper = kept(_mm512_set1_epi8(48));
  __m512i middle = kept(_mm512_set1_epi8(32));
  __m512i left = kept(both(_mm256_set1_epi16(4), _mm256_set1_epi16(2)));
  __m512i right = kept(both(_mm256_setzero_si256(), _mm256_set1_epi16(2)));
};

}  // namespace
}  // namespace quire::gemm
