// Decoders of block formats to bf16, a row at a time. Needs AVX-512 with VBMI and BF16; included only by
// files compiled for that, and everything has internal linkage. A 4-bit format becomes a table of 16 bf16
// values per scale and one look-up per 32 weights; that is exact where the products of code and scale have 8
// significant bits or fewer (NVFP4, MXFP4), and one rounding otherwise, or two by way of half precision
// (lookup_avx512.h).
//
// Each format is a struct: `row` decodes `count` weights from the start of a block, 32 to a piece, pieces
// `step` elements apart, 64-byte aligned. count is a multiple of kColumns; only BF16 can end within a piece,
// whose rest becomes zero.
#pragma once

#include <immintrin.h>

#include <cstring>
#include <type_traits>

#include "ops/gemm/decode_avx512.h"
#include "ops/gemm/kquants_avx512.h"
#include "ops/gemm/lookup_avx512.h"
#include "ops/gemm/small_avx512.h"

namespace quire::gemm {
namespace {

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

struct Bf16 {
  static constexpr int64_t kColumns = 1, kBytes = 2;
  void row(const std::byte* block, int64_t count, uint16_t* to, int64_t step) const {
    const int64_t full = count / 32, rest = count % 32;
    for (int64_t s = 0; s < full; ++s, block += 64, to += step) _mm512_store_si512(to, _mm512_loadu_si512(block));
    if (rest > 0) _mm512_store_si512(to, _mm512_maskz_loadu_epi16((1u << rest) - 1u, block));
  }
};

// fn(format) for the format of a type, or R() if there is none.
template <class R, class Fn>
R with_format(DType type, Fn&& fn) {
  switch (type) {
    case DType::kBF16:
      return fn(Bf16{});
    case DType::kNVFP4:
      return fn(Nvfp4{});
    case DType::kMXFP4:
      return fn(Mxfp4{});
    case DType::kQ8_0:
      return fn(Q8_0{});
    case DType::kFP8:
      return fn(Fp8{});
    case DType::kQ4_0:
      return fn(Q4<false>{});
    case DType::kQ4_1:
      return fn(Q4<true>{});
    case DType::kQ5_0:
      return fn(Q5<false>{});
    case DType::kQ5_1:
      return fn(Q5<true>{});
    case DType::kQ4_K:
      return fn(Q45K<false>{});
    case DType::kQ5_K:
      return fn(Q45K<true>{});
    case DType::kQ6_K:
      return fn(Q6K{});
    case DType::kQ2_K:
      return fn(Q2K{});
    case DType::kQ3_K:
      return fn(Q3K{});
    case DType::kIQ4_NL:
      return fn(Iq4Nl{});
    case DType::kIQ4_XS:
      return fn(Iq4Xs{});
    default:
      return R();
  }
}

template <class Format>
void decode_tiles(const std::byte* first, int64_t row_bytes, int rows, int64_t begin, int64_t count, uint16_t* out,
                  DecodeLayout layout) {
  const Format format;
  first += begin / Format::kColumns * Format::kBytes;
  for (int r = 0; r < rows; ++r) format.row(first + r * row_bytes, count, out + r * layout.row, layout.step);
}

inline DecodeTiles decoder_of(DType type) {
  return with_format<DecodeTiles>(type, [](auto format) -> DecodeTiles { return decode_tiles<decltype(format)>; });
}

}  // namespace
}  // namespace quire::gemm