// Q8_0, Q4_0, Q4_1, Q5_0 and Q5_1 (quant/blocks32.cpp) with AVX-512, in the form that parts_avx512.h describes.
// Everything has internal linkage.
#pragma once

#include "ops/gemm/formats/parts_avx512.h"

namespace quire::gemm {
namespace {

// ---- To bf16

// Q4_0 and Q4_1: a half d, for Q4_1 a half m, 16 bytes of codes.
template <bool kOffset>
struct Q4 {
  static constexpr int64_t kColumns = 32, kBytes = kOffset ? 20 : 18;
  void row(const std::byte* block, int64_t count, uint16_t* to, int64_t step) const {
    for (int64_t k = 0; k < count; k += 32, block += kBytes, to += step)
      _mm512_store_si512(to, look_up(codes.index(block + kBytes - 16), table(block)));
  }

 private:
  __m512i table(const std::byte* block) const {
#ifdef __AVX512FP16__
    if (!kOffset && Halves<8>::fit(block)) [[likely]]
      return halves.to_bf16(0xfeff'feff, Halves<8>::times(integers, block));
#endif
    const __m512 offset = kOffset ? broadcast_half(block + 2) : _mm512_setzero_ps();
    return table16(counting(kOffset ? 0.0f : -8.0f), broadcast_half(block), offset);
  }
  Nibbles codes{kSplitHalves};
#ifdef __AVX512FP16__
  Halves<8> halves;
  __m512h integers = integers256<16, 8>();
#endif
};

// Q5_0 and Q5_1: the same with 32 bits, one more for each code, before the bytes of codes.
template <bool kOffset>
struct Q5 {
  static constexpr int64_t kColumns = 32, kBytes = kOffset ? 24 : 22;
  void row(const std::byte* block, int64_t count, uint16_t* to, int64_t step) const {
    const __m512i fifth = _mm512_set1_epi8(32);
    for (int64_t k = 0; k < count; k += 32, block += kBytes, to += step) {
      uint32_t bits;
      std::memcpy(&bits, block + kBytes - 20, 4);
      const __m512i c = codes.index(block + kBytes - 16);
      _mm512_store_si512(to, look_up(_mm512_mask_add_epi16(c, bits, c, fifth), table(block)));
    }
  }

 private:
  __m512i table(const std::byte* block) const {
#ifdef __AVX512FP16__
    if (!kOffset && Halves<8>::fit(block)) [[likely]]
      return halves.to_bf16(0xfffe'ffff, Halves<8>::times(integers, block));
#endif
    const __m512 offset = kOffset ? broadcast_half(block + 2) : _mm512_setzero_ps();
    return table32(counting(kOffset ? 0.0f : -16.0f), counting(kOffset ? 16.0f : 0.0f), broadcast_half(block), offset);
  }
  Nibbles codes{kSplitHalves};
#ifdef __AVX512FP16__
  Halves<8> halves;
  __m512h integers = integers256<32, 16>();
#endif
};

// Q8_0: 32 weights in 34 bytes: a half and 32 signed bytes.
struct Q8_0 {
  static constexpr int64_t kColumns = 32, kBytes = 34;
  void row(const std::byte* block, int64_t count, uint16_t* to, int64_t step) const {
    for (int64_t k = 0; k < count; k += 32, block += kBytes, to += step) {
#ifdef __AVX512FP16__
      if (Halves<8>::fit(block)) [[likely]] {
        const __m512i q = doubled.load_high(block + 2);
        const __m512h product = Halves<8>::times(_mm512_cvtepi16_ph(q), block);
        _mm512_store_si512(to, halves.to_bf16(_mm512_test_epi16_mask(q, q), product));
        continue;
      }
#endif
      const __m512 wide = broadcast_half(block);
      const __m512bh values = _mm512_cvtne2ps_pbh(widen(block + 18, wide), widen(block + 2, wide));
      _mm512_store_si512(to, (__m512i)values);
    }
  }

 private:
  static __m512 widen(const std::byte* at, __m512 scale) {
    const __m128i q = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
    return _mm512_mul_ps(scale, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(q)));
  }
#ifdef __AVX512FP16__
  Halves<8> halves;
  Doubled doubled;
#endif
};

// ---- Integers, in place

struct IntegerQ8_0 : Plain {
  static constexpr int64_t kUnitBytes = 68;
  static constexpr int kBias = 128;
  static constexpr bool kWide = true;
  using Rows = __m512;

  static void gather(const std::byte* rows, int64_t stride, Gathered& to) {
    gather_blocks<uint16_t>(rows, stride, 0, 34, to.first);
  }
  static Rows rows(const Gathered& g, int q, FourRows) { return eight_halves(g.first + 16 * q, of_blocks_one_row()); }
  static __m512i codes(const std::byte* p, int) {
    const __m512i q =
        _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 2))),
                           _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 36)), 1);
    return _mm512_xor_si512(q, _mm512_set1_epi8(-128));
  }
  static __m512 factors(const Rows& r, int) { return r; }
};

struct WithOffsets {
  __m512 factors, offsets;
};

// Q4_0, Q4_1, Q5_0 and Q5_1: a half d, perhaps a half m, perhaps 32 fifth bits, 16 bytes of codes.
template <bool kFifthBit, bool kMinimum>
struct IntegerLegacy : Nibbles32 {
  static constexpr int64_t kBlock = 18 + (kMinimum ? 2 : 0) + (kFifthBit ? 4 : 0), kUnitBytes = 2 * kBlock;
  static constexpr int kBias = kMinimum ? 0 : kFifthBit ? 16 : 8;
  static constexpr bool kOffsets = kMinimum;
  using Rows = WithOffsets;

  static void gather(const std::byte* rows, int64_t stride, Gathered& to) {
    gather_blocks<uint16_t>(rows, stride, 0, kBlock, to.first);
    if (kMinimum) gather_blocks<uint16_t>(rows, stride, 2, kBlock, to.second);
  }
  static Rows rows(const Gathered& g, int q, FourRows) {
    const __m512i lanes = of_blocks_two_rows();
    return {eight_halves(g.first + 16 * q, lanes),
            kMinimum ? eight_halves(g.second + 16 * q, lanes) : _mm512_setzero_ps()};
  }
  static TwoCodes codes(const std::byte* a, const std::byte* b, int) {
    const __m512i x = of_two_rows(a + kBlock - 16, b + kBlock - 16, kBlock);
    const TwoCodes c = {low_nibble(x), low_nibble(_mm512_srli_epi16(x, 4))};
    if constexpr (!kFifthBit) return c;
    const uint64_t a0 = fifth_bits(a), a1 = fifth_bits(a + kBlock), b0 = fifth_bits(b), b1 = fifth_bits(b + kBlock);
    const __mmask64 low = (a0 & 0xffff) | (a1 & 0xffff) << 16 | (b0 & 0xffff) << 32 | b1 << 48;
    const __mmask64 high = a0 >> 16 | (a1 >> 16) << 16 | (b0 >> 16) << 32 | (b1 >> 16) << 48;
    const __m512i fifth = _mm512_set1_epi8(16);
    return {_mm512_mask_add_epi8(c.low, low, c.low, fifth), _mm512_mask_add_epi8(c.high, high, c.high, fifth)};
  }
  static uint64_t fifth_bits(const std::byte* p) { return load_as<uint32_t>(p + kBlock - 20); }
  static __m512 factors(const Rows& r, int) { return r.factors; }
  static __m512 offsets(const Rows& r, int) { return r.offsets; }
};

// ---- Repacked

struct LanesQ8_0 : PlainLanes {
  using Integer = IntegerQ8_0;
  static constexpr DType kType = DType::kQ8_0;
  struct Head {
    explicit Head(const std::byte* unit) : d(split_halves(load_words(unit, 0))) {}
    __m512i d;
  };
  static __m512i codes(const std::byte* unit, int, int g, int j) { return load_words(unit, 1 + 4 * g + j); }
  static __m512 factor(const Head& h, int, int g) { return g < 2 ? low_floats(h.d) : high_floats(h.d); }
};

// Bit 4 w + b of the lower half of every word (w + 4: of the upper) to bit 4 of its byte b.
constexpr Bytes fifth_bits_of(int w) {
  return Bytes([=](int i) { return (i % 8 / 4 * 32 + 4 * w + i % 4 - 4) & 63; });
}
constexpr Bytes kFifthBitsOf[8] = {fifth_bits_of(0), fifth_bits_of(1), fifth_bits_of(2), fifth_bits_of(3),
                                   fifth_bits_of(4), fifth_bits_of(5), fifth_bits_of(6), fifth_bits_of(7)};

template <bool kFifthBit, bool kMinimum, DType kOfType>
struct LanesLegacy : NibbleLanes {
  using Integer = IntegerLegacy<kFifthBit, kMinimum>;
  static constexpr DType kType = kOfType;
  static constexpr int kBits = kMinimum ? 2 : 1, kCodes = kBits + (kFifthBit ? 2 : 0);  // where they begin
  struct Head {
    explicit Head(const std::byte* unit)
        : d(split_halves(load_words(unit, 0))), m(kMinimum ? split_halves(load_words(unit, 1)) : d) {}
    __m512i d, m;
  };
  static __m512i codes(const std::byte* unit, int, int g, int j) {
    const int block = g / 2, w = word(g, j);
    const __m512i c = nibble(load_words(unit, kCodes + 4 * block + w), j >= 2);
    if constexpr (!kFifthBit) return c;
    const __m512i fifth =
        _mm512_multishift_epi64_epi8(load_table(kFifthBitsOf[j / 2 * 4 + w].of), load_words(unit, kBits + block));
    return _mm512_ternarylogic_epi32(c, fifth, _mm512_set1_epi8(16), 0xf8);
  }
  static __m512 factor(const Head& h, int, int g) { return g < 2 ? low_floats(h.d) : high_floats(h.d); }
  static __m512 offset(const Head& h, int, int g) { return g < 2 ? low_floats(h.m) : high_floats(h.m); }
};

template <>
struct OnAvx512<DType::kQ8_0> {
  using Rows = Q8_0;
  using Integer = IntegerQ8_0;
  using Lanes = LanesQ8_0;
};

template <>
struct OnAvx512<DType::kQ4_0> {
  using Rows = Q4<false>;
  using Integer = IntegerLegacy<false, false>;
  using Lanes = LanesLegacy<false, false, DType::kQ4_0>;
};

template <>
struct OnAvx512<DType::kQ4_1> {
  using Rows = Q4<true>;
  using Integer = IntegerLegacy<false, true>;
  using Lanes = LanesLegacy<false, true, DType::kQ4_1>;
};

template <>
struct OnAvx512<DType::kQ5_0> {
  using Rows = Q5<false>;
  using Integer = IntegerLegacy<true, false>;
  using Lanes = LanesLegacy<true, false, DType::kQ5_0>;
};

template <>
struct OnAvx512<DType::kQ5_1> {
  using Rows = Q5<true>;
  using Integer = IntegerLegacy<true, true>;
  using Lanes = LanesLegacy<true, true, DType::kQ5_1>;
};

}  // namespace
}  // namespace quire::gemm
