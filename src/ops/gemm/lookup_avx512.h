// What decoders to bf16 (formats/parts_avx512.h) are made of: look-ups in tables of bf16 values, and products in half
// precision. Everything has internal linkage.
#pragma once

#include <immintrin.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace quire::gemm {
namespace {

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
constexpr NibbleLayout kSplitHalves([](int w) { return w % 16; }, [](int w) { return w >= 16; }, [](int) { return 0; });
// Half a block of NVFP4: two times 16 weights with a scale each, 0..7 in the low nibbles of 8 bytes.
constexpr NibbleLayout kTwoSixteens([](int w) { return w / 16 * 8 + w % 8; }, [](int w) { return w % 16 >= 8; },
                                    [](int w) { return w / 16; });

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

// A table of 16 as both halves of one of 32.
inline __m512i twice(__m256i table) {
  return _mm512_broadcast_i64x4(table);
}
inline __m512 counting(float from) {
  return _mm512_add_ps(_mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0), _mm512_set1_ps(from));
}
// slope * code + offset for the codes of `codes`, rounded to bf16.
inline __m512i table16(__m512 codes, __m512 slope, __m512 offset) {
  return twice((__m256i)_mm512_cvtneps_pbh(_mm512_fmadd_ps(codes, slope, offset)));
}
inline __m512i table32(__m512 low, __m512 high, __m512 slope, __m512 offset) {
  return (__m512i)_mm512_cvtne2ps_pbh(_mm512_fmadd_ps(high, slope, offset), _mm512_fmadd_ps(low, slope, offset));
}

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
    for (int i = 0; i < 32; ++i) v[static_cast<size_t>(i)] = static_cast<int16_t>(256 * (i % kPeriod - kZero));
    return v;
  }();
  return _mm512_cvtepi16_ph(kept(_mm512_load_si512(kValues.data())));
}
#endif

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

}  // namespace
}  // namespace quire::gemm
