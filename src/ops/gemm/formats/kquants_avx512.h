// Q4_K, Q5_K and Q6_K (quant/kquants.cpp) with AVX-512, in the form that parts_avx512.h describes. Everything has
// internal linkage.
#pragma once

#include "ops/gemm/formats/parts_avx512.h"

namespace quire::gemm {
namespace {

// ---- To bf16

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

// ---- Integers, in place

// For Q4_K and Q5_K, the lanes of sub-blocks 2 s and 2 s + 1 among scales [2][4 rows][4] or minima behind
// them.
constexpr Bytes sub_lanes(int s, int base) {
  return Bytes([=](int i) { return base + (s >= 2 ? 16 : 0) + i / 4 % 4 * 4 + (2 * s + i / 32) % 4; });
}
constexpr Bytes kScaleLanes[4] = {sub_lanes(0, 0), sub_lanes(1, 0), sub_lanes(2, 0), sub_lanes(3, 0)};
constexpr Bytes kMinimumLanes[4] = {sub_lanes(0, 32), sub_lanes(1, 32), sub_lanes(2, 32), sub_lanes(3, 32)};

constexpr Bytes kFifthBits[4] = {bit_to(0, 1, 4), bit_to(2, 3, 4), bit_to(4, 5, 4), bit_to(6, 7, 4)};
constexpr Bytes kSixBits[2] = {bit_to(0, 2, 4), bit_to(4, 6, 4)};

template <bool kFifthBit>
struct IntegerQ45K : KQuant {
  static constexpr int64_t kUnitBytes = kFifthBit ? 176 : 144;
  static constexpr bool kOffsets = true;
  struct Rows {
    __m512i sixes;  // scales of sub-blocks 0-3, 4-7, minima 0-3, 4-7: [4][4 rows][4] bytes
    __m512 d, dmin;
  };

  static Rows rows(const Gathered&, int, FourRows p) {
    const __m512i by_row = _mm512_inserti64x4(
        _mm512_castsi256_si512(_mm256_inserti128_si256(_mm256_castsi128_si256(load16(p[0])), load16(p[1]), 1)),
        _mm256_inserti128_si256(_mm256_castsi128_si256(load16(p[2])), load16(p[3]), 1), 1);
    const __m512i by_word = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    const __m512i y = _mm512_permutexvar_epi32(by_word, by_row);  // d and dmin, then the 12 bytes as three words
    const auto lanes = [](int a, int b, int c, int d) {
      return _mm512_set_epi32(d, d, d, d, c, c, c, c, b, b, b, b, a, a, a, a);
    };
    // sixes = {u0, u2, u1, u2 >> 4} in their low 6 or 4 bits, and the top pairs of u0 and u1 above the 4
    // bits.
    const __m512i a = _mm512_srlv_epi32(_mm512_shuffle_i32x4(y, y, 0xed), lanes(0, 0, 0, 4));
    const __m512i b = _mm512_srli_epi32(_mm512_shuffle_i32x4(y, y, 0xa5), 2);
    const __m512i low = _mm512_and_si512(a, lanes(0x3f3f3f3f, 0x0f0f0f0f, 0x3f3f3f3f, 0x0f0f0f0f));
    const __m512i sixes = _mm512_ternarylogic_epi32(low, b, lanes(0, 0x30303030, 0, 0x30303030), 0xf8);
    const __m128i halves = _mm_shuffle_epi8(_mm512_castsi512_si128(y),
                                            _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    const __m512 both = _mm512_castps256_ps512(_mm256_cvtph_ps(halves));
    return {sixes, _mm512_shuffle_f32x4(both, both, 0x00), _mm512_shuffle_f32x4(both, both, 0x55)};
  }
  static __m512i codes(const std::byte* p, int s) {
    const __m512i c = low_nibble(low_then_high(p + kUnitBytes - 128 + 32 * s));
    if constexpr (!kFifthBit) return c;
    const __m512i bits = _mm512_multishift_epi64_epi8(load_table(kFifthBits[s].of), load32_twice(p + 16));
    return _mm512_ternarylogic_epi32(c, bits, _mm512_set1_epi8(16), 0xf8);
  }
  static __m512 of_sixes(const Rows& r, const Bytes& which) {
    return _mm512_cvtepi32_ps(_mm512_maskz_permutexvar_epi8(kFirstOfFour, load_table(which.of), r.sixes));
  }
  static __m512 factors(const Rows& r, int s) { return of_sixes(r, kScaleLanes[s]); }
  static __m512 offsets(const Rows& r, int s) { return of_sixes(r, kMinimumLanes[s]); }
};

struct IntegerQ6K : KQuant {
  static constexpr bool kBlocks = false;
  static constexpr int64_t kUnitBytes = 210;
  static constexpr int kBias = 32;
  static constexpr bool kWide = true;
  struct Rows {
    __m512i scales;  // [4 rows][16] signed bytes
    __m512 d;
  };

  static Rows rows(const Gathered&, int, FourRows p) {
    const __m512i scales = _mm512_inserti64x4(
        _mm512_castsi256_si512(
            _mm256_inserti128_si256(_mm256_castsi128_si256(load16(p[0] + 192)), load16(p[1] + 192), 1)),
        _mm256_inserti128_si256(_mm256_castsi128_si256(load16(p[2] + 192)), load16(p[3] + 192), 1), 1);
    const auto d = [&](int r) { return _mm_cvtph_ps(_mm_cvtsi32_si128(load_as<uint16_t>(p[r] + 208))); };
    const __m128 four = _mm_movelh_ps(_mm_unpacklo_ps(d(0), d(1)), _mm_unpacklo_ps(d(2), d(3)));
    return {scales, _mm512_broadcast_f32x4(four)};
  }
  static __m512i codes(const std::byte* p, int s) {
    const __m512i low = _mm512_loadu_si512(p + 64 * (s / 2));
    const __m512i c = low_nibble(s % 2 == 0 ? low : _mm512_srli_epi16(low, 4));
    const __m512i top = load32_twice(p + 128 + 32 * (s / 2));
    const __m512i bits = _mm512_multishift_epi64_epi8(load_table(kSixBits[s % 2].of), top);
    return _mm512_ternarylogic_epi32(c, bits, _mm512_set1_epi8(0x30), 0xf8);
  }
  static __m512 factors(const Rows& r, int s) {
    const __m512i top = _mm512_maskz_permutexvar_epi8(kFirstOfFour << 3, load_table(kGroupLanes[s].of), r.scales);
    return _mm512_cvtepi32_ps(_mm512_srai_epi32(top, 24));
  }
};

// ---- Repacked

template <bool kFifthBit, DType kOfType>
struct LanesQ45K : PlainLanes {
  using Integer = IntegerQ45K<kFifthBit>;
  static constexpr DType kType = kOfType;
  static constexpr int kCodes = kFifthBit ? 12 : 4;
  static constexpr int shift(int, int g) { return !kFifthBit && g >= 2 ? 4 : 0; }
  struct Head {
    explicit Head(const std::byte* unit) {
      const __m512i halves = split_halves(load_words(unit, 0));
      d = low_floats(halves);
      dmin = high_floats(halves);
      const __m512i u0 = load_words(unit, 1), u1 = load_words(unit, 2), u2 = load_words(unit, 3);
      const __m512i six = _mm512_set1_epi8(0x3f), four = _mm512_set1_epi8(0x0f), top = _mm512_set1_epi8(0x30);
      scales[0] = _mm512_and_si512(u0, six);
      minima[0] = _mm512_and_si512(u1, six);
      scales[1] = _mm512_ternarylogic_epi32(_mm512_and_si512(u2, four), _mm512_srli_epi32(u0, 2), top, 0xf8);
      minima[1] = _mm512_ternarylogic_epi32(_mm512_and_si512(_mm512_srli_epi32(u2, 4), four), _mm512_srli_epi32(u1, 2),
                                            top, 0xf8);
    }
    __m512 d, dmin;
    __m512i scales[2], minima[2];  // bytes of sub-blocks 0 to 3 and 4 to 7
  };
  static __m512i codes(const std::byte* unit, int s, int g, int j) {
    const int word = g % 2 * 4 + j;
    const __m512i x = load_words(unit, kCodes + 8 * s + word);
    if (shift(s, g) != 0) return _mm512_and_si512(x, _mm512_set1_epi8(static_cast<char>(0xf0)));
    const __m512i c = nibble(x, g >= 2);
    if constexpr (!kFifthBit) return c;
    const int bit = 2 * s + g / 2;  // of the column's byte, to bit 4
    const __m512i bits = load_words(unit, 4 + word);
    return _mm512_ternarylogic_epi32(c, bits_to(bits, bit, 4), _mm512_set1_epi8(16), 0xf8);
  }
  static __m512 factor(const Head& h, int s, int g) { return byte_as_float(h.scales[s / 2], 2 * s % 4 + g / 2); }
  static __m512 offset(const Head& h, int s, int g) { return byte_as_float(h.minima[s / 2], 2 * s % 4 + g / 2); }
};

struct LanesQ6K : PlainLanes {
  using Integer = IntegerQ6K;
  static constexpr DType kType = DType::kQ6_K;
  struct Head {
    explicit Head(const std::byte* unit) : d(low_floats(split_halves(load_words(unit, 52)))) {
      for (int s = 0; s < 4; ++s) scales[s] = load_words(unit, 48 + s);
    }
    __m512 d;
    __m512i scales[4];  // of a step's groups, signed bytes
  };
  static __m512i codes(const std::byte* unit, int s, int g, int j) {
    const int word = 4 * g + j, bit = s % 2 * 4 + g / 2 * 2;  // the top two of six, to bits 4 and 5
    const __m512i c = nibble(load_words(unit, s / 2 * 16 + word), s % 2 == 1);
    const __m512i bits = load_words(unit, 32 + s / 2 * 8 + word % 8);
    return _mm512_ternarylogic_epi32(c, bits_to(bits, bit, 4), _mm512_set1_epi8(0x30), 0xf8);
  }
  static __m512 factor(const Head& h, int s, int g) { return signed_byte_as_float(h.scales[s], g); }
};

template <>
struct OnAvx512<DType::kQ4_K> {
  using Rows = Q45K<false>;
  using Integer = IntegerQ45K<false>;
  using Lanes = LanesQ45K<false, DType::kQ4_K>;
};

template <>
struct OnAvx512<DType::kQ5_K> {
  using Rows = Q45K<true>;
  using Integer = IntegerQ45K<true>;
  using Lanes = LanesQ45K<true, DType::kQ5_K>;
};

template <>
struct OnAvx512<DType::kQ6_K> {
  using Rows = Q6K;
  using Integer = IntegerQ6K;
  using Lanes = LanesQ6K;
};

}  // namespace
}  // namespace quire::gemm
