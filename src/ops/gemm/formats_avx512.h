// Decoders of block formats to bf16, a row at a time. Needs AVX-512 with VBMI and BF16; included only by
// files compiled for that, and everything has internal linkage. A 4-bit format becomes a table of 16 bf16
// values per scale and one vpermw per 32 weights; that is exact where the products of code and scale have 8
// significant bits or fewer (NVFP4, MXFP4), and one rounding otherwise.
//
// Each format is a struct: `row` decodes `count` weights from the start of a block, 32 to a piece, pieces
// `step` elements apart, 64-byte aligned. count is a multiple of kColumns; only BF16 can end within a piece,
// whose rest becomes zero.
#pragma once

#include <immintrin.h>

#include <cstring>
#include <type_traits>

#include "ops/gemm/decode_avx512.h"

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
inline __m512i both(__m256i low, __m256i high) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

// A constant that stays in a register: the compiler would make it anew for every row.
inline __m512i kept(__m512i v) {
  asm("" : "+v"(v));
  return v;
}

// NVFP4: 64 weights in 36 bytes: 4 scales, then 8 bytes of codes for each 16 weights (low nibbles first).
struct Nvfp4 {
  static constexpr int64_t kColumns = 64, kBytes = 36;
  void row(const std::byte* block, int64_t count, uint16_t* to, int64_t step) const {
    const auto* const table = reinterpret_cast<const std::byte*>(kNvfp4.of);
    const auto decode32 = [&](const std::byte* codes, uint32_t s0, uint32_t s1, uint16_t* out) {
      __m512i c = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
      c = _mm512_srlv_epi16(_mm512_shuffle_epi8(c, spread), shift);
      c = _mm512_ternarylogic_epi64(c, nibble, second, 0xEA);  // (c & nibble) | second
      const auto row_at = [&](uint32_t offset) {
        return _mm256_load_si256(reinterpret_cast<const __m256i*>(table + offset));
      };
      _mm512_store_si512(out, _mm512_permutexvar_epi16(c, both(row_at(s0), row_at(s1))));
    };
    for (int64_t k = 0; k < count; k += 64, block += kBytes, to += 2 * step) {
      // Four scales in one load, each times 32, the bytes of a table row: loads are what there are too many
      // of.
      uint32_t s;
      std::memcpy(&s, block, 4);
      decode32(block + 4, s << 5 & 0x1fe0, s >> 3 & 0x1fe0, to);
      decode32(block + 20, s >> 11 & 0x1fe0, s >> 19 & 0x1fe0, to + step);
    }
  }

 private:
  // 16 bytes of codes become 32 words whose low nibble is the code of weight 0..31; bit 4 then chooses
  // between the tables of the two scales.
  __m512i spread =
      kept(_mm512_set_epi64(0x800f800e800d800c, 0x800b800a80098008, 0x800f800e800d800c, 0x800b800a80098008,
                            0x8007800680058004, 0x8003800280018000, 0x8007800680058004, 0x8003800280018000));
  __m512i shift = kept(_mm512_set_epi64(0x0004000400040004, 0x0004000400040004, 0, 0, 0x0004000400040004,
                                        0x0004000400040004, 0, 0));
  __m512i nibble = kept(_mm512_set1_epi16(15));
  __m512i second = kept(both(_mm256_setzero_si256(), _mm256_set1_epi16(16)));
};

// 16 bytes of codes: weights 0..15 in the low nibbles, 16..31 in the high ones. Bits above the nibble are
// left over.
inline __m512i split_halves(const std::byte* codes) {
  const __m256i c = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
  return both(c, _mm256_srli_epi16(c, 4));
}
// Tables of 16 lie in a register twice, so that bit 4 of an index, left over from the other nibble, does not
// matter.
inline __m512i twice(__m256i table) {
  return _mm512_broadcast_i64x4(table);
}
inline __m512 counting(float from) {
  return _mm512_add_ps(_mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
                       _mm512_set1_ps(from));
}
// slope * code + offset for the codes of `codes`, rounded to bf16.
inline __m512i table16(__m512 codes, __m512 slope, __m512 offset) {
  return twice((__m256i)_mm512_cvtneps_pbh(_mm512_fmadd_ps(codes, slope, offset)));
}
inline __m512i table32(__m512 low, __m512 high, __m512 slope, __m512 offset) {
  return (__m512i)_mm512_cvtne2ps_pbh(_mm512_fmadd_ps(high, slope, offset),
                                      _mm512_fmadd_ps(low, slope, offset));
}

struct Mxfp4 {
  static constexpr int64_t kColumns = 32, kBytes = 17;
  void row(const std::byte* block, int64_t count, uint16_t* to, int64_t step) const {
    for (int64_t k = 0; k < count; k += 32, block += kBytes, to += step)
      _mm512_store_si512(
          to, _mm512_permutexvar_epi16(split_halves(block + 1), twice(table_row(kMxfp4, *bytes(block)))));
  }
};

// The half at `at` in all lanes.
inline __m512 broadcast_half(const std::byte* at) {
  uint16_t h;
  std::memcpy(&h, at, 2);
  return _mm512_cvtph_ps(_mm256_set1_epi16(static_cast<short>(h)));
}

// Q4_0 and Q4_1: a half d, for Q4_1 a half m, 16 bytes of codes.
template <bool kOffset>
struct Q4 {
  static constexpr int64_t kColumns = 32, kBytes = kOffset ? 20 : 18;
  void row(const std::byte* block, int64_t count, uint16_t* to, int64_t step) const {
    const __m512 codes = counting(kOffset ? 0.0f : -8.0f);
    for (int64_t k = 0; k < count; k += 32, block += kBytes, to += step) {
      const __m512 offset = kOffset ? broadcast_half(block + 2) : _mm512_setzero_ps();
      const __m512i table = table16(codes, broadcast_half(block), offset);
      _mm512_store_si512(to, _mm512_permutexvar_epi16(split_halves(block + kBytes - 16), table));
    }
  }
};

// Q5_0 and Q5_1: the same with 32 bits, one more for each code, before the bytes of codes.
template <bool kOffset>
struct Q5 {
  static constexpr int64_t kColumns = 32, kBytes = kOffset ? 24 : 22;
  void row(const std::byte* block, int64_t count, uint16_t* to, int64_t step) const {
    const __m512 low = counting(kOffset ? 0.0f : -16.0f), high = counting(kOffset ? 16.0f : 0.0f);
    const __m512i nibble = _mm512_set1_epi16(15), fifth = _mm512_set1_epi16(16);
    for (int64_t k = 0; k < count; k += 32, block += kBytes, to += step) {
      const __m512 offset = kOffset ? broadcast_half(block + 2) : _mm512_setzero_ps();
      const __m512i table = table32(low, high, broadcast_half(block), offset);
      uint32_t bits;
      std::memcpy(&bits, block + kBytes - 20, 4);
      const __m512i c = _mm512_and_si512(split_halves(block + kBytes - 16), nibble);
      _mm512_store_si512(to, _mm512_permutexvar_epi16(_mm512_mask_add_epi16(c, bits, c, fifth), table));
    }
  }
};

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
inline __m512i words_of(const std::byte* at) {
  return _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
}

template <bool kFifthBit>
struct Q45K {
  static constexpr int64_t kColumns = 256, kBytes = kFifthBit ? 176 : 144;
  void row(const std::byte* block, int64_t count, uint16_t* to, int64_t step) const {
    constexpr int64_t kCodes = kFifthBit ? 48 : 16;
    const __m512 low = counting(0), high = counting(16);
    const __m512i fifth = _mm512_set1_epi16(16);
    SubScales s;
    for (int64_t k = 0; k < count; k += 256, block += kBytes) {
      load_sub_scales(block, s);
      // Bit j of a byte is the fifth bit of sub-block j; shifted left by 4, it walks down to bit 4.
      __m512i bits = kFifthBit ? _mm512_slli_epi16(words_of(block + 16), 4) : _mm512_setzero_si512();
      for (int j = 0; j < 8; ++j, to += step) {
        __m512i c = words_of(block + kCodes + j / 2 * 32);
        if (j % 2 == 1) c = _mm512_srli_epi16(c, 4);
        const __m512 slope = _mm512_set1_ps(s.slope[j]), offset = _mm512_set1_ps(s.offset[j]);
        if constexpr (kFifthBit) {
          c = _mm512_ternarylogic_epi64(fifth, bits, c, 0xCA);  // fifth ? bits : c
          bits = _mm512_srli_epi16(bits, 1);
          _mm512_store_si512(to, _mm512_permutexvar_epi16(c, table32(low, high, slope, offset)));
        } else {
          _mm512_store_si512(to, _mm512_permutexvar_epi16(c, table16(low, slope, offset)));
        }
      }
    }
  }
};

// Q6_K: 256 weights of 6 bits: 128 bytes with the low four of each, 64 with the upper two, 16 signed scales,
// d.
struct Q6K {
  static constexpr int64_t kColumns = 256, kBytes = 210;
  void row(const std::byte* block, int64_t count, uint16_t* to, int64_t step) const {
    const __m256i nibble = _mm256_set1_epi8(15), upper = _mm256_set1_epi8(48), middle = _mm256_set1_epi8(32);
    alignas(64) float scales[16];
    const auto load = [](const std::byte* at) {
      return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
    };
    const auto widen = [](__m128i q, float scale) {
      return _mm512_mul_ps(_mm512_set1_ps(scale), _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(q)));
    };
    for (int64_t k = 0; k < count; k += 256, block += kBytes) {
      const __m128i sc = _mm_loadu_si128(reinterpret_cast<const __m128i*>(block + 192));
      _mm512_store_ps(
          scales, _mm512_mul_ps(broadcast_half(block + 208), _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(sc))));
      for (int h = 0; h < 2; ++h)
        for (int g = 0; g < 4; ++g, to += step) {
          __m256i lo = load(block + 64 * h + 32 * (g & 1));
          if (g >= 2) lo = _mm256_srli_epi16(lo, 4);
          // The two bits of group g end up in bits 4 and 5.
          const __m256i qh = load(block + 128 + 32 * h);
          const __m256i hi = g < 2 ? _mm256_slli_epi16(qh, 4 - 2 * g) : _mm256_srli_epi16(qh, 2 * g - 4);
          const __m256i q = _mm256_sub_epi8(
              _mm256_or_si256(_mm256_and_si256(lo, nibble), _mm256_and_si256(hi, upper)), middle);
          const float* s = scales + 8 * h + 2 * g;
          const __m512bh two = _mm512_cvtne2ps_pbh(widen(_mm256_extracti128_si256(q, 1), s[1]),
                                                   widen(_mm256_castsi256_si128(q), s[0]));
          _mm512_store_si512(to, (__m512i)two);
        }
    }
  }
};

// Q8_0: 32 weights in 34 bytes: a half and 32 signed bytes.
struct Q8_0 {
  static constexpr int64_t kColumns = 32, kBytes = 34;
  void row(const std::byte* block, int64_t count, uint16_t* to, int64_t step) const {
    for (int64_t k = 0; k < count; k += 32, block += kBytes, to += step) {
#ifdef __AVX512FP16__
      uint16_t scale;
      std::memcpy(&scale, block, 2);
      // Scales from 2^-22 to 2: products with 256 times the codes are zero or normal halves.
      if (static_cast<uint16_t>(scale - 0x0004) < 0x4000 - 0x0004) [[likely]] {
        _mm512_store_si512(to, from_halves(block, scale));
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
  static __m512i byte_pairs() {
    alignas(64) uint8_t index[64];
    for (int i = 0; i < 64; ++i) index[i] = static_cast<uint8_t>(i / 2);
    return _mm512_load_si512(index);
  }
  // 32 lanes at a time in half precision, a third of the work of float32: the codes times 256 (bytes in the
  // upper halves of words), times the scale, rounded to 11 bits; then to the 8 of bf16, half away from zero.
  // Together off by at most 2^-8 + 2^-11 of the value. A half moved right by three bits is a bf16 with
  // another exponent bias; 0x3400 = (127 - 15 - 8) << 7 puts that and the 256 right, except for zeros.
  __m512i from_halves(const std::byte* block, uint16_t scale) const {
    const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block + 2));
    const __m512i q =
        _mm512_maskz_permutexvar_epi8(0xaaaaaaaaaaaaaaaa, spread, _mm512_broadcast_i64x4(codes));
    const __m512i product =
        (__m512i)_mm512_mul_ph(_mm512_cvtepi16_ph(q), (__m512h)_mm512_set1_epi16(static_cast<short>(scale)));
    const __m512i moved = _mm512_and_si512(_mm512_mulhrs_epi16(product, eighth), sign_and_rest);
    return _mm512_maskz_add_epi16(_mm512_test_epi16_mask(q, q), moved, bias);
  }
  __m512i spread = kept(byte_pairs());
  __m512i eighth = kept(_mm512_set1_epi16(1 << 12));
  __m512i sign_and_rest = kept(_mm512_set1_epi16(static_cast<short>(0x8fff)));
  __m512i bias = kept(_mm512_set1_epi16(0x3400));
#endif
};

struct Bf16 {
  static constexpr int64_t kColumns = 1, kBytes = 2;
  void row(const std::byte* block, int64_t count, uint16_t* to, int64_t step) const {
    const int64_t full = count / 32, rest = count % 32;
    for (int64_t s = 0; s < full; ++s, block += 64, to += step)
      _mm512_store_si512(to, _mm512_loadu_si512(block));
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
    default:
      return R();
  }
}

template <class Format>
void decode_tiles(const std::byte* first, int64_t row_bytes, int rows, int64_t begin, int64_t count,
                  uint16_t* out, DecodeLayout layout) {
  const Format format;
  first += begin / Format::kColumns * Format::kBytes;
  for (int r = 0; r < rows; ++r) format.row(first + r * row_bytes, count, out + r * layout.row, layout.step);
}

inline DecodeTiles decoder_of(DType type) {
  return with_format<DecodeTiles>(type,
                                  [](auto format) -> DecodeTiles { return decode_tiles<decltype(format)>; });
}

}  // namespace
}  // namespace quire::gemm
