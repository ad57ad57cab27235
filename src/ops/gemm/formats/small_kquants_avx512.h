// Q2_K and Q3_K (quant/kquants.cpp) with AVX-512, in the form that parts_avx512.h describes; to bf16 by way of float32,
// rounded once. Everything has internal linkage.
#pragma once

#include "ops/gemm/formats/parts_avx512.h"
#include "ops/gemm/sub_scales.h"

namespace quire::gemm {
namespace {

// ---- To bf16

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

// ---- Integers, in place

// Two bits of 32 bytes are a code of each of 32 columns, and the bytes those of two steps: the codes of one,
// with other bits above them.
inline __m512i crumbs_of_step(const std::byte* codes, int s) {
  const auto half = [&](int i) { return static_cast<short>(4 * (s % 2) + 2 * i); };
  const __m512i by = _mm512_inserti64x4(_mm512_set1_epi16(half(0)), _mm256_set1_epi16(half(1)), 1);
  return _mm512_srlv_epi16(load32_twice(codes + s / 2 * 32), by);
}
// 16 bytes of each of four rows.
inline __m512i load16_of_rows(FourRows p, int64_t at) {
  const auto two = [&](int r) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(load16(p[r] + at)), load16(p[r + 1] + at), 1);
  };
  return _mm512_inserti64x4(_mm512_castsi256_si512(two(0)), two(2), 1);
}

// 16 bytes of a scale and a minimum, 64 of codes, d and dmin.
struct IntegerQ2K : KQuant {
  static constexpr bool kBlocks = false;
  static constexpr int64_t kUnitBytes = 84;
  static constexpr bool kOffsets = true;
  struct Rows {
    __m512i scales, minima;  // [4 rows][16] bytes
    __m512 d, dmin;
  };

  static Rows rows(const Gathered&, int, FourRows p) {
    const __m512i both = load16_of_rows(p, 0);
    const auto word = [&](int r) { return load_as<int32_t>(p[r] + 80); };
    const __m128i halves = _mm_shuffle_epi8(_mm_setr_epi32(word(0), word(1), word(2), word(3)),
                                            _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    const __m512 floats = _mm512_castps256_ps512(_mm256_cvtph_ps(halves));
    return {low_nibble(both), low_nibble(_mm512_srli_epi16(both, 4)), _mm512_shuffle_f32x4(floats, floats, 0x00),
            _mm512_shuffle_f32x4(floats, floats, 0x55)};
  }
  static __m512i codes(const std::byte* p, int s) {
    return _mm512_and_si512(crumbs_of_step(p + 16, s), _mm512_set1_epi8(3));
  }
  static __m512 of_groups(__m512i bytes, int s) {
    return _mm512_cvtepi32_ps(_mm512_maskz_permutexvar_epi8(kFirstOfFour, load_table(kGroupLanes[s].of), bytes));
  }
  static __m512 factors(const Rows& r, int s) { return of_groups(r.scales, s); }
  static __m512 offsets(const Rows& r, int s) { return of_groups(r.minima, s); }
};

// For multishift: of sub-blocks 2 s and 2 s + 1, a bit of every byte to bit 2.
constexpr Bytes kThirdBits[4] = {bit_to(0, 1, 2), bit_to(2, 3, 2), bit_to(4, 5, 2), bit_to(6, 7, 2)};
// Of the bytes of 16 scales (quant/kquants.cpp), in a quarter for each row from its third byte on: those with the lower
// four bits of each scale, and those with the upper two.
constexpr Bytes kLowerOfSixes([](int i) { return 2 + i % 8; });
constexpr Bytes kUpperOfSixes([](int i) { return 10 + i % 4; });
// And where these bits begin, for multishift: at bit 0 and at bit 4 of the scale.
constexpr Bytes kLowerBits([](int i) { return 8 * (i % 8) + i / 8 % 2 * 4; });
constexpr Bytes kUpperBits([](int i) { return (8 * (i % 8) + i % 16 / 4 * 2 - 4) & 63; });

// 32 bytes of third bits, 64 of the other two, 12 of scales, d.
struct IntegerQ3K : KQuant {
  static constexpr bool kBlocks = false;
  static constexpr int64_t kUnitBytes = 110;
  static constexpr int kBias = 4;
  struct Rows {
    __m512i scales;  // [4 rows][16] signed bytes
    __m512 d;
  };

  static Rows rows(const Gathered&, int, FourRows p) {
    const __m512i end = load16_of_rows(p, 94);  // two bytes of codes, the scales, d
    const __m512i scales = signed_sixes(
        _mm512_multishift_epi64_epi8(load_table(kLowerBits.of), _mm512_shuffle_epi8(end, load_table(kLowerOfSixes.of))),
        _mm512_multishift_epi64_epi8(load_table(kUpperBits.of),
                                     _mm512_shuffle_epi8(end, load_table(kUpperOfSixes.of))));
    static constexpr Bytes kLast([](int i) { return i % 2 == 0 ? i / 2 % 4 * 8 + 7 : 0; });
    const __m128i halves = _mm512_castsi512_si128(_mm512_permutexvar_epi16(load_table(kLast.of), end));
    return {scales, _mm512_broadcast_f32x4(_mm_cvtph_ps(halves))};
  }
  static __m512i codes(const std::byte* p, int s) {
    const __m512i two = _mm512_and_si512(crumbs_of_step(p + 32, s), _mm512_set1_epi8(3));
    const __m512i third = _mm512_multishift_epi64_epi8(load_table(kThirdBits[s].of), load32_twice(p));
    return _mm512_ternarylogic_epi32(two, third, _mm512_set1_epi8(4), 0xf8);
  }
  static __m512 factors(const Rows& r, int s) {
    const __m512i top = _mm512_maskz_permutexvar_epi8(kFirstOfFour << 3, load_table(kGroupLanes[s].of), r.scales);
    return _mm512_cvtepi32_ps(_mm512_srai_epi32(top, 24));
  }
};

// ---- Repacked

// Of the words of crumbs, which holds the four columns (g, j) of a step, and from which bit on.
struct CrumbLanes : PlainLanes {
  static constexpr int word(int s, int g, int j) { return s / 2 * 8 + g % 2 * 4 + j; }
  static constexpr int bit(int s, int g) { return s % 2 * 4 + g / 2 * 2; }
};

struct LanesQ2K : CrumbLanes {
  using Integer = IntegerQ2K;
  static constexpr DType kType = DType::kQ2_K;
  struct Head {
    explicit Head(const std::byte* unit) {
      const __m512i halves = split_halves(load_words(unit, 20));
      d = low_floats(halves);
      dmin = high_floats(halves);
      for (int s = 0; s < 4; ++s) both[s] = load_words(unit, s);
    }
    __m512 d, dmin;
    __m512i both[4];  // of a step's groups, bytes of a scale and a minimum
  };
  // Where they lie.
  static constexpr int shift(int s, int g) { return bit(s, g); }
  static __m512i codes(const std::byte* unit, int s, int g, int j) {
    return _mm512_and_si512(load_words(unit, 4 + word(s, g, j)), _mm512_set1_epi8(static_cast<char>(3 << bit(s, g))));
  }
  static __m512 factor(const Head& h, int s, int g) { return nibble_as_float(h.both[s], 2 * g); }
  static __m512 offset(const Head& h, int s, int g) { return nibble_as_float(h.both[s], 2 * g + 1); }
};

struct LanesQ3K : CrumbLanes {
  using Integer = IntegerQ3K;
  static constexpr DType kType = DType::kQ3_K;
  struct Head {
    explicit Head(const std::byte* unit) : d(low_floats(split_halves(load_words(unit, 27)))) {
      const __m512i low[2] = {load_words(unit, 24), load_words(unit, 25)}, high = load_words(unit, 26);
      for (int s = 0; s < 4; ++s)
        scales[s] = signed_sixes(s < 2 ? low[s] : _mm512_srli_epi16(low[s - 2], 4), bits_to(high, 2 * s, 4));
    }
    __m512 d;
    __m512i scales[4];  // of a step's groups, signed bytes
  };
  // Where they lie, as far as a byte has room for a third bit above them.
  static constexpr int shift(int s, int g) { return bit(s, g) < 6 ? bit(s, g) : 4; }
  static __m512i codes(const std::byte* unit, int s, int g, int j) {
    const int at = shift(s, g);
    const auto mask = [&](int bits) { return _mm512_set1_epi8(static_cast<char>(bits << at)); };
    const __m512i two = bits_to(load_words(unit, 8 + word(s, g, j)), bit(s, g), at);
    const __m512i third = bits_to(load_words(unit, g % 2 * 4 + j), 2 * s + g / 2, at + 2);
    return _mm512_ternarylogic_epi32(_mm512_and_si512(two, mask(3)), third, mask(4), 0xf8);
  }
  static __m512 factor(const Head& h, int s, int g) { return signed_byte_as_float(h.scales[s], g); }
};

template <>
struct OnAvx512<DType::kQ2_K> {
  using Rows = Q2K;
  using Integer = IntegerQ2K;
  using Lanes = LanesQ2K;
};

template <>
struct OnAvx512<DType::kQ3_K> {
  using Rows = Q3K;
  using Integer = IntegerQ3K;
  using Lanes = LanesQ3K;
};

}  // namespace
}  // namespace quire::gemm
