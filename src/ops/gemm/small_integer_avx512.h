// Q2_K, Q3_K, IQ4_NL and IQ4_XS for the integer core, as they lie in the file (in the form that integer_avx512.h
// describes) and repacked (repacked_avx512.h). Everything has internal linkage.
#pragma once

#include "ops/gemm/repacked_avx512.h"
#include "quant/iq4.h"

namespace quire::gemm {
namespace {

// ---- In place

// Two bits of 32 bytes are a code of each of 32 columns, and the bytes those of two steps: the codes of one,
// with other bits above them.
inline __m512i crumbs(const std::byte* codes, int s) {
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
  static __m512i codes(const std::byte* p, int s) { return _mm512_and_si512(crumbs(p + 16, s), _mm512_set1_epi8(3)); }
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

// Scales of 6 bits, less 32: their lower four bits, among others, and their upper two.
inline __m512i signed_sixes(__m512i lower, __m512i upper) {
  const __m512i all = _mm512_ternarylogic_epi32(_mm512_set1_epi8(15), lower, upper, 0xca);
  return _mm512_sub_epi8(_mm512_and_si512(all, _mm512_set1_epi8(0x3f)), _mm512_set1_epi8(32));
}

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
    const __m512i two = _mm512_and_si512(crumbs(p + 32, s), _mm512_set1_epi8(3));
    const __m512i third = _mm512_multishift_epi64_epi8(load_table(kThirdBits[s].of), load32_twice(p));
    return _mm512_ternarylogic_epi32(two, third, _mm512_set1_epi8(4), 0xf8);
  }
  static __m512 factors(const Rows& r, int s) {
    const __m512i top = _mm512_maskz_permutexvar_epi8(kFirstOfFour << 3, load_table(kGroupLanes[s].of), r.scales);
    return _mm512_cvtepi32_ps(_mm512_srai_epi32(top, 24));
  }
};

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

}  // namespace
}  // namespace quire::gemm
