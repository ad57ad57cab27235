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

#include <array>
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
template <class Vector>
Vector kept(Vector v) {
  asm("" : "+v"(v));
  return v;
}

// 16 bytes of 4-bit codes become 32 words, and 32 words a look-up in a table of 32 bf16 values. vpermw takes
// both vector ports for a cycle and vpermb one, so the table is looked up by bytes: both bytes of a word hold
// twice the code in bits 1 to 4, the low one even, the high one odd, plus 32 for the second half of the
// table. A rotation brings the low or the high nibble there; what it leaves in the other bits is replaced.
struct alignas(64) NibbleLayout {
  uint8_t byte[64];   // of the 16, which holds the code
  uint16_t turn[32];  // to the left
  uint8_t base[64];   // what stands beside the code's bits

  // Weight w is in byte byte_of(w), in its high half if high_of(w), and looked up from entry 16 second_of(w)
  // on.
  template <class Byte, class High, class Second>
  constexpr NibbleLayout(Byte byte_of, High high_of, Second second_of) : byte{}, turn{}, base{} {
    for (int w = 0; w < 32; ++w) {
      byte[2 * w] = byte[2 * w + 1] = static_cast<uint8_t>(byte_of(w));
      turn[w] = high_of(w) ? 13 : 1;
      base[2 * w] = static_cast<uint8_t>(32 * second_of(w));
      base[2 * w + 1] = static_cast<uint8_t>(32 * second_of(w) + 1);
    }
  }
};
// Blocks of 32: weights 0..15 in the low nibbles, 16..31 in the high ones.
constexpr NibbleLayout kSplitHalves([](int w) { return w % 16; }, [](int w) { return w >= 16; },
                                    [](int) { return 0; });
// Half a block of NVFP4: two times 16 weights with a scale each, 0..7 in the low nibbles of 8 bytes.
constexpr NibbleLayout kTwoSixteens([](int w) { return w / 16 * 8 + w % 8; },
                                    [](int w) { return w % 16 >= 8; }, [](int w) { return w / 16; });

class Nibbles {
 public:
  explicit Nibbles(const NibbleLayout& layout)
      : byte_(kept(_mm512_load_si512(layout.byte))),
        turn_(kept(_mm512_load_si512(layout.turn))),
        base_(kept(_mm512_load_si512(layout.base))) {}
  // For look_up(). Adding 32 to both bytes of a word makes it one of the second half of the table.
  __m512i index(const std::byte* codes) const {
    __m512i c = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
    c = _mm512_shuffle_epi8(c, byte_);
    c = _mm512_shldv_epi16(c, c, turn_);
    return _mm512_ternarylogic_epi64(c, code_, base_, 0xEA);  // (c & code) | base
  }

 private:
  __m512i byte_, turn_, base_;
  __m512i code_ = kept(_mm512_set1_epi8(30));
};
inline __m512i look_up(__m512i index, __m512i table) {
  return _mm512_permutexvar_epi8(index, table);
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

// A table of 16 as both halves of one of 32.
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
      _mm512_store_si512(to, look_up(codes.index(block + 1), twice(table_row(kMxfp4, *bytes(block)))));
  }

 private:
  Nibbles codes{kSplitHalves};
};

// The half at `at` in all lanes.
inline __m512 broadcast_half(const std::byte* at) {
  uint16_t h;
  std::memcpy(&h, at, 2);
  return _mm512_cvtph_ps(_mm256_set1_epi16(static_cast<short>(h)));
}

#ifdef __AVX512FP16__
// Products of small integers and a scale in half precision, 32 lanes at a time and a third of the work of
// float32: 2^kUp times the value, rounded to 11 bits; then to the 8 of bf16, half away from zero. Together
// off by at most 2^-8 + 2^-11 of the value.
template <int kUp>
class Halves {
 public:
  // Whether 256 times integers up to 127, times the half at `scale`, are zero or normal: |scale| from 2^-22
  // to 2.
  static bool fit(const std::byte* scale) {
    uint16_t bits;
    std::memcpy(&bits, scale, 2);
    return static_cast<uint16_t>(2 * bits - 0x0008) < 0x8000 - 0x0008;  // doubled: without its sign
  }
  // The scale goes through the product's own load: from an integer register it would take a vector port.
  static __m512h times(__m512h integers256, const std::byte* scale) {
    __m512h product;
    asm("vmulph %1%{1to32%}, %2, %0"
        : "=v"(product)
        : "m"(*reinterpret_cast<const uint16_t*>(scale)), "v"(integers256));
    return product;
  }
  // A half moved right by three bits is a bf16 with another exponent bias. Adding the difference, less kUp,
  // puts that right, except for zeros.
  __m512i to_bf16(__mmask32 not_zero, __m512h product) const {
    const __m512i moved = _mm512_and_si512(_mm512_mulhrs_epi16((__m512i)product, eighth_), sign_and_rest_);
    return _mm512_maskz_add_epi16(not_zero, moved, bias_);
  }

 private:
  __m512i eighth_ = kept(_mm512_set1_epi16(1 << 12));
  __m512i sign_and_rest_ = kept(_mm512_set1_epi16(static_cast<short>(0x8fff)));
  __m512i bias_ = kept(_mm512_set1_epi16((127 - 15 - kUp) << 7));
};

// 256 times (lane % kPeriod - kZero), as halves.
template <int kPeriod, int kZero>
__m512h integers256() {
  alignas(64) static constexpr auto kValues = [] {
    std::array<int16_t, 32> v{};
    for (int i = 0; i < 32; ++i)
      v[static_cast<size_t>(i)] = static_cast<int16_t>(256 * (i % kPeriod - kZero));
    return v;
  }();
  return _mm512_cvtepi16_ph(kept(_mm512_load_si512(kValues.data())));
}
#endif

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
    return table32(counting(kOffset ? 0.0f : -16.0f), counting(kOffset ? 16.0f : 0.0f), broadcast_half(block),
                   offset);
  }
  Nibbles codes{kSplitHalves};
#ifdef __AVX512FP16__
  Halves<8> halves;
  __m512h integers = integers256<32, 16>();
#endif
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
struct alignas(64) BytePairs {
  uint8_t index[64];
  constexpr BytePairs() : index{} {
    for (int i = 0; i < 64; ++i) index[i] = static_cast<uint8_t>(i / 2);
  }
};
constexpr BytePairs kBytePairs;

// 32 bytes, each twice.
class Doubled {
 public:
  __m512i load(const std::byte* at) const { return _mm512_permutexvar_epi8(twice_, bytes32(at)); }
  // The bytes times 256: only in the upper half of each word.
  __m512i load_high(const std::byte* at) const { return high(bytes32(at)); }
  __m512i high(__m512i bytes) const { return _mm512_maskz_permutexvar_epi8(kHigh, twice_, bytes); }
  __m512i high_of_second(__m512i bytes) const {  // of the second 32 bytes
    return _mm512_maskz_permutexvar_epi8(kHigh, second_, bytes);
  }

 private:
  static __m512i bytes32(const std::byte* at) {
    return _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
  }
  static constexpr __mmask64 kHigh = 0xaaaa'aaaa'aaaa'aaaa;
  __m512i twice_ = kept(_mm512_load_si512(kBytePairs.index));
  __m512i second_ = kept(_mm512_or_si512(twice_, _mm512_set1_epi8(32)));
};

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
      const __m512 scales =
          _mm512_mul_ps(broadcast_half(block + 208), _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(sc)));
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
