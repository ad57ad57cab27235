// What the integer core (core_integer_avx512.cpp) reads: tokens as integers, and the weights' codes and
// scales. Needs AVX-512 with VBMI; everything has internal linkage.
//
// A step is 64 columns. Four weight rows make a vector of 16 sums: of each row those of four groups g of 16
// columns, groups 0 and 1 within the first 32 columns. A format gives, in the same lanes, the factors that
// these sums are multiplied by. Its Lanes say where row r, group g lies:
// - OneRow: a vector of codes is 64 columns of one row. Lane 4 g + r.
// - TwoRows: a vector is 32 bytes of nibbles of each of two rows, low nibbles multiplied first, then high
//   ones: half the work of adding up. Groups are any 16 columns of their block. Lane 8 (r % 2) +
//   4 (g / 2) + 2 (r / 2) + g % 2.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace quire::gemm {
namespace {

constexpr int64_t kStepColumns = 64;

// 64 columns of a token: value = scale[column / 32] * (8 * high + low), largest magnitude 1016.
struct alignas(64) TokenStep {
  int8_t high[64];
  int8_t low[64];
  int32_t minus_twice[4];        // -2 times the sum of the integers of 16 columns
  int32_t minus_twice_block[2];  // of 32
  float minus_value[2];          // minus the sum of the values of 32
  float scale[2];
  float minus_value_group[4];  // of 16
};

constexpr int32_t kLargest = 1016;      // 8 * 127: what the largest of 32 becomes
constexpr float kSmallest = 0x1p-116f;  // 32 columns below are zeros: their reciprocal would overflow

// 32 columns of a step, half 0 or 1. If one is not finite, the scale is NaN.
inline void quantise(const __m512 (&v)[2], TokenStep& to, int half) {
  const __m512i sign = _mm512_set1_epi32(0x7fffffff);
  const auto magnitude = [&](int i) { return _mm512_and_si512(_mm512_castps_si512(v[i]), sign); };
  // Ordered like the numbers, NaN on top.
  const int32_t largest = _mm512_reduce_max_epi32(_mm512_max_epi32(magnitude(0), magnitude(1)));
  const float m = __builtin_bit_cast(float, largest);
  const bool finite = largest < 0x7f800000, kept = finite && m >= kSmallest;
  const __m512 reciprocal = _mm512_set1_ps(static_cast<float>(kLargest) / (kept ? m : 1.0f));
  const float scale = !finite ? __builtin_nanf("") : kept ? m / static_cast<float>(kLargest) : 0.0f;
  int32_t all = 0;
  for (int i = 0; i < 2; ++i) {
    const __m512i q = _mm512_maskz_cvtps_epi32(kept ? 0xffff : 0, _mm512_mul_ps(v[i], reciprocal));
    const __m512i high = _mm512_srai_epi32(_mm512_add_epi32(q, _mm512_set1_epi32(4)), 3);
    const __m512i low = _mm512_sub_epi32(q, _mm512_slli_epi32(high, 3));
    _mm_store_si128(reinterpret_cast<__m128i*>(to.high + 32 * half + 16 * i), _mm512_cvtepi32_epi8(high));
    _mm_store_si128(reinterpret_cast<__m128i*>(to.low + 32 * half + 16 * i), _mm512_cvtepi32_epi8(low));
    const int32_t sum = _mm512_reduce_add_epi32(q);
    to.minus_twice[2 * half + i] = -2 * sum;
    to.minus_value_group[2 * half + i] = -static_cast<float>(sum) * scale;
    all += sum;
  }
  to.scale[half] = scale;
  to.minus_twice_block[half] = -2 * all;
  to.minus_value[half] = -static_cast<float>(all) * scale;
}

// ---- Formats. `codes` are unsigned bytes, kBias more than the integers they stand for; weight = kUnit *
// factor * integer (+ offset), or with kSuper kUnit * d * factor * integer (- dmin * offset). A unit is
// kSteps steps long and kUnitBytes in the file; FourRows are four rows' units.

struct FourRows {
  const std::byte* first;
  int64_t stride;
  const std::byte* operator[](int r) const { return first + r * stride; }
};

template <class T>
T load_as(const std::byte* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline __m128i load16(const std::byte* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
// 32 bytes twice.
inline __m512i load32_twice(const std::byte* p) {
  return _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline __m512i load_table(const uint8_t (&t)[64]) {
  return _mm512_load_si512(t);
}

// A vector of bytes, computed once.
struct alignas(64) Bytes {
  uint8_t of[64];
  template <class Fn>
  explicit constexpr Bytes(Fn fn) : of{} {
    for (int i = 0; i < 64; ++i) of[i] = static_cast<uint8_t>(fn(i));
  }
};

// 32 bytes of nibbles: the low ones, then the high ones.
inline __m512i low_then_high(const std::byte* p) {
  const __m512i x = load32_twice(p);
  return _mm512_mask_srli_epi16(x, 0xffff0000u, x, 4);
}
// 32 bytes of each of two rows, which may lie in two pieces `gap` bytes apart.
inline __m512i of_two_rows(const std::byte* a, const std::byte* b, int64_t gap) {
  const auto row = [&](const std::byte* p) {
    if (gap == 16) return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm256_inserti128_si256(_mm256_castsi128_si256(load16(p)), load16(p + gap), 1);
  };
  return _mm512_inserti64x4(_mm512_castsi256_si512(row(a)), row(b), 1);
}
inline __m512i low_nibble(__m512i x) {
  return _mm512_and_si512(x, _mm512_set1_epi8(15));
}

// What lies apart in the file, of the same unit of 16 rows, side by side: [row / 4][block][row % 4] for
// formats with blocks of 32. Copied without vectors while the unit before is computed.
struct alignas(64) Gathered {
  std::byte first[64];
  std::byte second[64];
};
template <class T>
void gather_blocks(const std::byte* rows, int64_t stride, int64_t at, int64_t block_bytes, std::byte* to) {
  for (int q = 0; q < 4; ++q)
    for (int b = 0; b < 2; ++b, to += 4 * sizeof(T)) {
      uint64_t four = 0;
      for (int r = 3; r >= 0; --r)
        four = four << (8 * sizeof(T)) | load_as<T>(rows + (4 * q + r) * stride + at + b * block_bytes);
      std::memcpy(to, &four, 4 * sizeof(T));
    }
}

// Lanes of 8 numbers, those of the first blocks of four rows and those of their second blocks.
inline __m512i of_blocks_one_row() {
  return _mm512_set_epi32(7, 6, 5, 4, 7, 6, 5, 4, 3, 2, 1, 0, 3, 2, 1, 0);
}
inline __m512i of_blocks_two_rows() {
  return _mm512_set_epi32(7, 7, 5, 5, 3, 3, 1, 1, 6, 6, 4, 4, 2, 2, 0, 0);
}
inline __m512 eight_halves(const std::byte* gathered, __m512i lanes) {
  return _mm512_permutexvar_ps(lanes, _mm512_castps256_ps512(_mm256_cvtph_ps(load16(gathered))));
}

struct OneRow {
  static constexpr bool kTwo = false;
  // Where a lane finds its own of a step's two scales, and of its groups.
  static __m512i scale_lanes() { return _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0); }
  static __m512i groups() { return _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0); }
  // The sum of a block of 32 columns where those of its two groups are.
  static __m512i of_blocks(__m512i sums) { return _mm512_add_epi32(sums, _mm512_shuffle_i32x4(sums, sums, 0xb1)); }
  // The groups of four rows become their sums: (0 + 2) + (1 + 3).
  static __m128 add_groups(__m512 acc) {
    const __m256 pair = _mm256_add_ps(_mm512_castps512_ps256(acc), _mm512_extractf32x8_ps(acc, 1));
    return _mm_add_ps(_mm256_castps256_ps128(pair), _mm256_extractf128_ps(pair, 1));
  }
};
struct TwoRows {
  static constexpr bool kTwo = true;
  static __m512i scale_lanes() { return _mm512_set_epi32(1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0); }
  static __m512i groups() { return _mm512_set_epi32(3, 2, 3, 2, 1, 0, 1, 0, 3, 2, 3, 2, 1, 0, 1, 0); }
  static __m512i of_blocks(__m512i sums) {
    return _mm512_add_epi32(sums, _mm512_shuffle_epi32(sums, static_cast<_MM_PERM_ENUM>(0xb1)));
  }
  static __m128 add_groups(__m512 acc) {
    const __m512 pair = _mm512_add_ps(acc, _mm512_shuffle_f32x4(acc, acc, 0xb1));  // rows 0, 2 below, 1, 3 above
    const __m512 all = _mm512_add_ps(pair, _mm512_permute_ps(pair, 0xb1));
    return _mm_shuffle_ps(_mm_unpacklo_ps(_mm512_castps512_ps128(all), _mm512_extractf32x4_ps(all, 2)),
                          _mm_unpackhi_ps(_mm512_castps512_ps128(all), _mm512_extractf32x4_ps(all, 2)), 0x44);
  }
};
struct TwoCodes {
  __m512i low, high;
};

// What formats have unless they say otherwise.
struct Plain : OneRow {
  using Lanes = OneRow;
  static constexpr int64_t kSteps = 1;
  static constexpr bool kBlocks = true;  // whether the groups of 32 columns have a factor in common
  static constexpr int kBias = 0;
  static constexpr bool kWide = false;      // one row a vector: whether 8 times a code needs more than a byte
  static constexpr bool kOffsets = false;   // whether a weight is a product plus an offset
  static constexpr bool kSuper = false;     // whether a unit has d (and dmin) beside its factors
  static constexpr bool kHalfUnits = true;  // a row may end after 32 columns of a unit
  static constexpr float kUnit = 1.0f;
  static void gather(const std::byte*, int64_t, Gathered&) {}
};

// Blocks of 32 whose first 16 columns are the low nibbles. Columns go by eights of a step.
struct Nibbles32 : Plain {
  using Lanes = TwoRows;
  static __m512i low_columns() { return _mm512_set_epi64(5, 4, 1, 0, 5, 4, 1, 0); }
  static __m512i high_columns() { return _mm512_set_epi64(7, 6, 3, 2, 7, 6, 3, 2); }
};

// ---- K-quants: 256 columns in a unit of four steps.

struct KQuant : Plain {
  static constexpr int64_t kSteps = 4;
  static constexpr bool kSuper = true;
  static constexpr bool kHalfUnits = false;
};

constexpr uint64_t kFirstOfFour = 0x1111111111111111u;

// For multishift: every byte's bit low_half, or high_half in the upper 32 bytes, moves to bit `to`; the bits
// above it come along.
constexpr Bytes bit_to(int low_half, int high_half, int to) {
  return Bytes([=](int i) { return (8 * (i % 8) + (i < 32 ? low_half : high_half) - to) & 63; });
}

// Scales of 6 bits, less 32: their lower four bits, among others, and their upper two.
inline __m512i signed_sixes(__m512i lower, __m512i upper) {
  const __m512i all = _mm512_ternarylogic_epi32(_mm512_set1_epi8(15), lower, upper, 0xca);
  return _mm512_sub_epi8(_mm512_and_si512(all, _mm512_set1_epi8(0x3f)), _mm512_set1_epi8(32));
}

// Scale g of step s of row r, among [4 rows][16] bytes, to lane 4 g + r.
constexpr Bytes group_lanes(int s) {
  return Bytes([=](int i) { return i / 4 % 4 * 16 + 4 * s + i / 16; });
}
constexpr Bytes kGroupLanes[4] = {group_lanes(0), group_lanes(1), group_lanes(2), group_lanes(3)};

}  // namespace
}  // namespace quire::gemm
