// MXFP4 and NVFP4 (quant/fp4.cpp) with AVX-512, in the form that parts_avx512.h describes. Everything has internal
// linkage.
#pragma once

#include "ops/gemm/formats/parts_avx512.h"

namespace quire::gemm {
namespace {

// ---- To bf16

// The upper half of a float's bits: exact for values of at most 8 significant bits.
constexpr uint16_t high_half(float x) {
  return static_cast<uint16_t>(__builtin_bit_cast(uint32_t, x) >> 16);
}

constexpr float kE2m1[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};

// One row of 16 products for each value of the scale byte.
struct alignas(64) ProductTable {
  uint16_t of[256][16];
};

constexpr float ue4m3(int byte) {
  const int code = byte & 0x7f, e = code >> 3, m = code & 7;
  if (code == 0x7f) return 0.0f;
  if (e == 0) return static_cast<float>(m) * 0x1p-9f;
  return __builtin_bit_cast(float, static_cast<uint32_t>(e + 120) << 23 | static_cast<uint32_t>(m) << 20);
}
constexpr float e8m0(int byte) {
  if (byte == 0) return 0x1p-127f;
  if (byte == 255) return __builtin_nanf("");
  return __builtin_bit_cast(float, static_cast<uint32_t>(byte) << 23);
}

constexpr ProductTable make_table(float (*scale)(int)) {
  ProductTable t{};
  for (int s = 0; s < 256; ++s)
    for (int c = 0; c < 16; ++c) {
      const double exact = static_cast<double>(scale(s)) * static_cast<double>(kE2m1[c & 7]);
      const bool nan = exact != exact, infinite = exact > 0x1.fep127;
      const uint16_t product = nan ? 0x7fc0 : infinite ? 0x7f80 : high_half(static_cast<float>(exact));
      t.of[s][c] = static_cast<uint16_t>(product | (c & 8) << 12);
    }
  return t;
}
constexpr ProductTable kNvfp4 = make_table(ue4m3);
constexpr ProductTable kMxfp4 = make_table(e8m0);

inline const uint8_t* bytes(const std::byte* p) {
  return reinterpret_cast<const uint8_t*>(p);
}
inline __m256i table_row(const ProductTable& t, uint8_t scale) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(t.of[scale]));
}

// NVFP4: 64 weights in 36 bytes: 4 scales, then 8 bytes of codes for each 16 weights (low nibbles first).
struct Nvfp4 {
  static constexpr int64_t kColumns = 64, kBytes = 36;
  void row(const std::byte* block, int64_t count, uint16_t* to, int64_t step) const {
    const auto* const table = reinterpret_cast<const std::byte*>(kNvfp4.of);
    const auto rows = [&](uint32_t offset0, uint32_t offset1) {
      return both(_mm256_load_si256(reinterpret_cast<const __m256i*>(table + offset0)),
                  _mm256_load_si256(reinterpret_cast<const __m256i*>(table + offset1)));
    };
    for (int64_t k = 0; k < count; k += 64, block += kBytes, to += 2 * step) {
      // Four scales in one load, each times 32, the bytes of a table row: loads are what there are too many
      // of.
      uint32_t s;
      std::memcpy(&s, block, 4);
      const __m512i low = rows(s << 5 & 0x1fe0, s >> 3 & 0x1fe0);
      _mm512_store_si512(to, look_up(codes.index(block + 4), low));
      const __m512i high = rows(s >> 11 & 0x1fe0, s >> 19 & 0x1fe0);
      _mm512_store_si512(to + step, look_up(codes.index(block + 20), high));
    }
  }

 private:
  Nibbles codes{kTwoSixteens};
};

struct Mxfp4 {
  static constexpr int64_t kColumns = 32, kBytes = 17;
  void row(const std::byte* block, int64_t count, uint16_t* to, int64_t step) const {
    for (int64_t k = 0; k < count; k += 32, block += kBytes, to += step)
      _mm512_store_si512(to, look_up(codes.index(block + 1), twice(table_row(kMxfp4, *bytes(block)))));
  }

 private:
  Nibbles codes{kSplitHalves};
};

// ---- Integers, in place

// 2 E2M1 + 16 by the low 4 of 6 bits.
constexpr Bytes kE2m1Codes([](int i) {
  constexpr int kTwice[8] = {0, 1, 2, 3, 4, 6, 8, 12};
  return 16 + (i & 8 ? -kTwice[i & 7] : kTwice[i & 7]);
});

struct IntegerNvfp4 : Plain {
  using Lanes = TwoRows;
  static constexpr bool kBlocks = false;
  static constexpr int64_t kUnitBytes = 36;
  static constexpr int kBias = 16;
  static constexpr bool kHalfUnits = false;
  static constexpr float kUnit = 0x1p7f;  // codes are twice the value, factors 2^-8 of it
  using Rows = __m512;

  static __m512i low_columns() { return _mm512_set_epi64(6, 4, 2, 0, 6, 4, 2, 0); }
  static __m512i high_columns() { return _mm512_set_epi64(7, 5, 3, 1, 7, 5, 3, 1); }
  static void gather(const std::byte* rows, int64_t stride, Gathered& to) {
    for (int r = 0; r < 16; ++r) std::memcpy(to.first + 4 * r, rows + r * stride, 4);
  }
  static Rows rows(const Gathered& g, int q, FourRows) {
    const __m128i s = load16(g.first + 16 * q);
    const __m128i in_lanes = _mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
    __m128i u = _mm_and_si128(_mm_shuffle_epi8(s, in_lanes), _mm_set1_epi8(0x7f));
    u = _mm_maskz_mov_epi8(_mm_cmpneq_epi8_mask(u, _mm_set1_epi8(0x7f)), u);  // 0x7f stands for zero
    // UE4M3 moved to where a half has its exponent and mantissa is 2^-8 of itself, subnormals included.
    return _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(u), 7));
  }
  static TwoCodes codes(const std::byte* a, const std::byte* b, int) { return e2m1(of_two_rows(a + 4, b + 4, 16)); }
  static TwoCodes e2m1(__m512i x) {
    const __m512i table = load_table(kE2m1Codes.of);
    return {_mm512_permutexvar_epi8(x, table), _mm512_permutexvar_epi8(_mm512_srli_epi16(x, 4), table)};
  }
  static __m512 factors(const Rows& r, int) { return r; }
};

struct IntegerMxfp4 : Nibbles32 {
  static constexpr int64_t kUnitBytes = 34;
  static constexpr int kBias = 16;
  static constexpr float kUnit = 0.5f;
  using Rows = __m512;

  static void gather(const std::byte* rows, int64_t stride, Gathered& to) {
    gather_blocks<uint8_t>(rows, stride, 0, 17, to.first);
  }
  static Rows rows(const Gathered& g, int q, FourRows) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(g.first + 8 * q));
    const __m128i in_lanes = _mm_setr_epi8(0, 0, 2, 2, 4, 4, 6, 6, 1, 1, 3, 3, 5, 5, 7, 7);
    return of_exponents(_mm512_cvtepu8_epi32(_mm_shuffle_epi8(bytes, in_lanes)));
  }
  static __m512 of_exponents(__m512i e) {
    const __m512i tiny = _mm512_set1_epi32(0x00400000), nan = _mm512_set1_epi32(0x7fc00000);
    __m512i f = _mm512_slli_epi32(e, 23);
    f = _mm512_mask_mov_epi32(f, _mm512_testn_epi32_mask(e, e), tiny);
    return _mm512_castsi512_ps(_mm512_mask_mov_epi32(f, _mm512_cmpeq_epi32_mask(e, _mm512_set1_epi32(255)), nan));
  }
  static TwoCodes codes(const std::byte* a, const std::byte* b, int) {
    return IntegerNvfp4::e2m1(of_two_rows(a + 1, b + 1, 17));
  }
  static __m512 factors(const Rows& r, int) { return r; }
};

// ---- Repacked

// Byte g of every word to the upper byte of a half.
constexpr Bytes tops(int g) {
  return Bytes([=](int i) { return i / 2 % 16 * 4 + g; });
}
constexpr Bytes kTops[4] = {tops(0), tops(1), tops(2), tops(3)};

struct LanesNvfp4 : PlainLanes {
  using Integer = IntegerNvfp4;
  static constexpr DType kType = DType::kNVFP4;
  struct Head {
    explicit Head(const std::byte* unit) {
      const __m512i most = _mm512_set1_epi8(0x7f);
      const __m512i u = _mm512_and_si512(load_words(unit, 0), most);
      scales = _mm512_maskz_mov_epi8(_mm512_cmpneq_epi8_mask(u, most), u);  // 0x7f stands for zero
    }
    __m512i scales;
  };
  static __m512i codes(const std::byte* unit, int, int g, int j) {
    const __m512i x = load_words(unit, 1 + 2 * g + j % 2);
    return _mm512_permutexvar_epi8(j < 2 ? x : _mm512_srli_epi16(x, 4), load_table(kE2m1Codes.of));
  }
  static __m512 factor(const Head& h, int, int g) {
    // As in IntegerNvfp4::rows.
    const __m512i top = _mm512_maskz_permutexvar_epi8(0xaaaaaaaaaaaaaaaau, load_table(kTops[g].of), h.scales);
    return low_floats(_mm512_srli_epi16(top, 1));
  }
};

struct LanesMxfp4 : NibbleLanes {
  using Integer = IntegerMxfp4;
  static constexpr DType kType = DType::kMXFP4;
  struct Head {
    explicit Head(const std::byte* unit) : exponents(load_words(unit, 0)) {}
    __m512i exponents;
  };
  static __m512i codes(const std::byte* unit, int s, int g, int j) {
    const __m512i x = load_words(unit, 1 + 4 * (2 * s + g / 2) + word(g, j));
    return _mm512_permutexvar_epi8(j < 2 ? x : _mm512_srli_epi16(x, 4), load_table(kE2m1Codes.of));
  }
  static __m512 factor(const Head& h, int s, int g) {
    const __m512i e = _mm512_and_si512(_mm512_srli_epi32(h.exponents, static_cast<unsigned>(8 * (2 * s + g / 2))),
                                       _mm512_set1_epi32(255));
    return IntegerMxfp4::of_exponents(e);
  }
};

template <>
struct OnAvx512<DType::kNVFP4> {
  using Rows = Nvfp4;
  using Integer = IntegerNvfp4;
  using Lanes = LanesNvfp4;
};

template <>
struct OnAvx512<DType::kMXFP4> {
  using Rows = Mxfp4;
  using Integer = IntegerMxfp4;
  using Lanes = LanesMxfp4;
};

}  // namespace
}  // namespace quire::gemm
