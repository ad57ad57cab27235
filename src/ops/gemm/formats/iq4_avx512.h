// IQ4_NL and IQ4_XS (quant/iq4.cpp) with AVX-512, in the form that parts_avx512.h describes; to bf16 by way of float32,
// rounded once. Everything has internal linkage.
#pragma once

#include "ops/gemm/formats/blocks32_avx512.h"
#include "ops/gemm/formats/parts_avx512.h"
#include "ops/gemm/sub_scales.h"
#include "quant/iq4.h"

namespace quire::gemm {
namespace {

// ---- To bf16

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

// ---- Integers, in place

// What a code of IQ4_NL and IQ4_XS stands for, and 128, by the low 4 of 6 bits.
constexpr int kIq4Bias = 128;
constexpr Bytes kIq4Codes([](int i) { return quant::kIq4Values[i % 16] + kIq4Bias; });
inline TwoCodes iq4_codes(__m512i x) {
  const __m512i table = load_table(kIq4Codes.of);
  return {_mm512_permutexvar_epi8(x, table), _mm512_permutexvar_epi8(_mm512_srli_epi16(x, 4), table)};
}

// 32 columns: a half d and 16 bytes of codes.
struct IntegerIq4Nl : Nibbles32 {
  static constexpr int64_t kUnitBytes = 36;
  static constexpr int kBias = kIq4Bias;
  using Rows = __m512;

  static void gather(const std::byte* rows, int64_t stride, Gathered& to) {
    gather_blocks<uint16_t>(rows, stride, 0, 18, to.first);
  }
  static Rows rows(const Gathered& g, int q, FourRows) { return eight_halves(g.first + 16 * q, of_blocks_two_rows()); }
  static TwoCodes codes(const std::byte* a, const std::byte* b, int) {
    return iq4_codes(of_two_rows(a + 2, b + 2, 18));
  }
  static __m512 factors(const Rows& r, int) { return r; }
};

// Byte i of IntegerIq4Xs::Rows::scales is this one of eight: that of block i / 16 % 2 of step i % 4.
constexpr int iq4_scale(int i) {
  return i % 4 * 2 + i / 16 % 2;
}
// For multishift of a row's first eight bytes: its lower four bits to bit 0, its upper two to bit 4.
constexpr Bytes kIq4Lower([](int i) { return 32 + 4 * iq4_scale(i); });
constexpr Bytes kIq4Upper([](int i) { return 12 + 2 * iq4_scale(i); });

// A half d, upper bits and lower nibbles of 8 scales of 6 bits (quant/iq4.cpp), 8 times 16 bytes of codes.
struct IntegerIq4Xs : Nibbles32 {
  static constexpr int64_t kSteps = 4, kUnitBytes = 136;
  static constexpr bool kSuper = true, kHalfUnits = false;
  static constexpr int kBias = kIq4Bias;
  struct Rows {
    __m512i scales;  // signed bytes: byte s of a lane is that of its block of step s
    __m512 d;
  };

  // The first eight bytes of a row, d and the scales, are put to the two pairs of lanes with its blocks.
  static Rows rows(const Gathered&, int, FourRows p) {
    const auto head = [&](int r) { return load_as<long long>(p[r]); };
    const __m512i heads =
        _mm512_permutexvar_epi64(_mm512_set_epi64(3, 1, 3, 1, 2, 0, 2, 0),
                                 _mm512_castsi256_si512(_mm256_setr_epi64x(head(0), head(1), head(2), head(3))));
    const __m512i scales = signed_sixes(_mm512_multishift_epi64_epi8(load_table(kIq4Lower.of), heads),
                                        _mm512_multishift_epi64_epi8(load_table(kIq4Upper.of), heads));
    static constexpr Bytes kFirst([](int i) { return i % 2 == 0 && i < 32 ? i / 4 * 4 : 0; });
    const __m512i d = _mm512_permutexvar_epi16(load_table(kFirst.of), heads);
    return {scales, _mm512_cvtph_ps(_mm512_castsi512_si256(d))};
  }
  static TwoCodes codes(const std::byte* a, const std::byte* b, int s) {
    return iq4_codes(of_two_rows(a + 8 + 32 * s, b + 8 + 32 * s, 16));
  }
  static __m512 factors(const Rows& r, int s) {
    const __m512i top = _mm512_slli_epi32(r.scales, static_cast<unsigned>(24 - 8 * s));
    return _mm512_cvtepi32_ps(_mm512_srai_epi32(top, 24));
  }
};

// ---- Repacked

inline __m512i iq4_lanes(__m512i x, bool high) {
  return _mm512_permutexvar_epi8(high ? _mm512_srli_epi16(x, 4) : x, load_table(kIq4Codes.of));
}

struct LanesIq4Nl : NibbleLanes {
  using Integer = IntegerIq4Nl;
  static constexpr DType kType = DType::kIQ4_NL;
  using Head = LanesQ8_0::Head;
  static __m512i codes(const std::byte* unit, int, int g, int j) {
    return iq4_lanes(load_words(unit, 1 + g / 2 * 4 + word(g, j)), j >= 2);
  }
  static __m512 factor(const Head& h, int s, int g) { return LanesQ8_0::factor(h, s, g); }
};

struct LanesIq4Xs : NibbleLanes {
  using Integer = IntegerIq4Xs;
  static constexpr DType kType = DType::kIQ4_XS;
  struct Head {
    explicit Head(const std::byte* unit) : high(load_words(unit, 0)), low(load_words(unit, 1)) {
      d = low_floats(split_halves(high));
    }
    __m512i high, low;  // of scales, the upper two bits above d, and the lower four
    __m512 d;
  };
  static __m512i codes(const std::byte* unit, int s, int g, int j) {
    return iq4_lanes(load_words(unit, 2 + 4 * (2 * s + g / 2) + word(g, j)), j >= 2);
  }
  static __m512 factor(const Head& h, int s, int g) {
    const int j = 2 * s + g / 2;
    const __m512i four =
        _mm512_and_si512(_mm512_srli_epi32(h.low, static_cast<unsigned>(4 * j)), _mm512_set1_epi32(15));
    const __m512i two = _mm512_srli_epi32(h.high, static_cast<unsigned>(12 + 2 * j));
    const __m512i all = _mm512_ternarylogic_epi32(four, two, _mm512_set1_epi32(48), 0xf8);
    return _mm512_cvtepi32_ps(_mm512_sub_epi32(all, _mm512_set1_epi32(32)));
  }
};

template <>
struct OnAvx512<DType::kIQ4_NL> {
  using Rows = Iq4Nl;
  using Integer = IntegerIq4Nl;
  using Lanes = LanesIq4Nl;
};

template <>
struct OnAvx512<DType::kIQ4_XS> {
  using Rows = Iq4Xs;
  using Integer = IntegerIq4Xs;
  using Lanes = LanesIq4Xs;
};

}  // namespace
}  // namespace quire::gemm
