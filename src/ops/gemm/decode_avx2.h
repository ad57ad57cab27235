// Decoders of rows to float32 for the AVX2 core, one for every block format. Exactly what quant::decode_row
// gives, but for the sign of a zero: products of a scale and a code are exact in float32, so at most one
// operation rounds. Everything has internal linkage.
#pragma once

#include <immintrin.h>

#include "ops/gemm/sub_scales.h"
#include "quant/fp4.h"
#include "quant/iq4.h"

namespace quire::gemm {
namespace {

inline __m128 half_at(const std::byte* at) {
  uint16_t h;
  std::memcpy(&h, at, 2);
  return _mm_cvtph_ps(_mm_cvtsi32_si128(h));
}
inline float half_of(const std::byte* at) {
  return _mm_cvtss_f32(half_at(at));
}
inline __m128i load16(const std::byte* at) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
}
inline __m256i load32(const std::byte* at) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
}

// 16 signed bytes times `scale` less `minus`.
inline void widen16(__m128i bytes, float scale, float minus, float* to) {
  const __m256 s = _mm256_set1_ps(scale), m = _mm256_set1_ps(minus);
  for (int i = 0; i < 16; i += 8, bytes = _mm_unpackhi_epi64(bytes, bytes))
    _mm256_storeu_ps(to + i, _mm256_fmsub_ps(s, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)), m));
}
inline void widen16(__m128i bytes, float scale, float* to) {
  const __m256 s = _mm256_set1_ps(scale);
  for (int i = 0; i < 16; i += 8, bytes = _mm_unpackhi_epi64(bytes, bytes))
    _mm256_storeu_ps(to + i, _mm256_mul_ps(s, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes))));
}

// The same for 32.
inline void widen32(__m256i bytes, float scale, float minus, float* to) {
  widen16(_mm256_castsi256_si128(bytes), scale, minus, to);
  widen16(_mm256_extracti128_si256(bytes, 1), scale, minus, to + 16);
}
inline void widen32(__m256i bytes, float scale, float* to) {
  widen16(_mm256_castsi256_si128(bytes), scale, to);
  widen16(_mm256_extracti128_si256(bytes, 1), scale, to + 16);
}

// d times each of eight bytes less `bias`.
inline __m256 scaled_bytes(uint64_t bytes, int bias, __m256 d) {
  const __m256i wide = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<long long>(bytes)));
  return _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_sub_epi32(wide, _mm256_set1_epi32(bias))));
}

// Two bits of 32 bytes, from bit 2 g on: the codes of 32 elements.
inline __m256i crumbs(__m256i bytes, int g) {
  return _mm256_and_si256(_mm256_srl_epi16(bytes, _mm_cvtsi32_si128(2 * g)), _mm256_set1_epi8(3));
}

// The low nibbles of 16 bytes, then the high ones.
inline __m256i nibbles(__m128i bytes) {
  return _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(bytes, 4), bytes), _mm256_set1_epi8(15));
}
// The low or the high nibbles of 32 bytes.
inline __m256i nibbles(__m256i bytes, bool high) {
  return _mm256_and_si256(high ? _mm256_srli_epi16(bytes, 4) : bytes, _mm256_set1_epi8(15));
}
// 16 in the bytes that have any bit of `bit`.
inline __m256i fifth(__m256i bytes, __m256i bit) {
  const __m256i none = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), _mm256_setzero_si256());
  return _mm256_andnot_si256(none, _mm256_set1_epi8(16));
}

inline void decode_q8_0(const std::byte* from, int64_t cols, float* to) {
  for (int64_t k = 0; k < cols; k += 32, from += 34, to += 32) widen32(load32(from + 2), half_of(from), to);
}

// Codes of E4M3 where a half has sign, exponent and mantissa: 2^-8 of what they are, subnormals included. Codes that
// are no numbers become some: no weight has them.
inline __m256i e4m3_as_halves(__m128i codes) {
  const __m256i moved = _mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7);
  return _mm256_and_si256(moved, _mm256_set1_epi16(static_cast<int16_t>(0xbfff)));
}

inline void decode_fp8(const std::byte* from, int64_t cols, float* to) {
  for (int64_t k = 0; k < cols; k += 128, from += 132) {
    float scale;
    std::memcpy(&scale, from, 4);
    const __m256 s = _mm256_set1_ps(0x1p8f * scale);
    for (int i = 0; i < 128; i += 16, to += 16) {
      const __m256i halves = e4m3_as_halves(load16(from + 4 + i));
      _mm256_storeu_ps(to, _mm256_mul_ps(s, _mm256_cvtph_ps(_mm256_castsi256_si128(halves))));
      _mm256_storeu_ps(to + 8, _mm256_mul_ps(s, _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))));
    }
  }
}

// Q4_0, Q4_1, Q5_0 and Q5_1: a half d, perhaps a half m, perhaps 32 fifth bits, 16 bytes of codes.
template <bool kFifthBit, bool kMinimum>
inline void decode_legacy(const std::byte* from, int64_t cols, float* to) {
  constexpr int64_t kCodes = 2 + (kMinimum ? 2 : 0) + (kFifthBit ? 4 : 0);
  const __m256i by_byte = _mm256_setr_epi64x(0, 0x0101'0101'0101'0101, 0x0202'0202'0202'0202, 0x0303'0303'0303'0303);
  const __m256i one_each = _mm256_set1_epi64x(static_cast<int64_t>(0x8040'2010'0804'0201));
  for (int64_t k = 0; k < cols; k += 32, from += kCodes + 16, to += 32) {
    __m256i q = nibbles(load16(from + kCodes));
    if constexpr (kFifthBit) {
      int32_t bits;
      std::memcpy(&bits, from + kCodes - 4, 4);
      q = _mm256_or_si256(q, fifth(_mm256_shuffle_epi8(_mm256_set1_epi32(bits), by_byte), one_each));
    }
    if constexpr (kMinimum)
      widen32(q, half_of(from), -half_of(from + 2), to);
    else
      widen32(_mm256_sub_epi8(q, _mm256_set1_epi8(kFifthBit ? 16 : 8)), half_of(from), to);
  }
}

// Q4_K and Q5_K: byte j is scale j, or minimum j, 0 to 63, of 8 from the twelve bytes at `s`.
struct EightSixes {
  uint64_t scales, minima;
};
inline EightSixes q4_k_scales(const std::byte* s) {
  constexpr uint32_t kSix = 0x3f3f3f3f, kFour = 0x0f0f0f0f, kTop = 0x30303030;
  uint32_t u[3];
  std::memcpy(u, s, sizeof u);
  const auto both = [](uint32_t first, uint32_t last) { return first | uint64_t{last} << 32; };
  return {both(u[0] & kSix, (u[2] & kFour) | (u[0] >> 2 & kTop)),
          both(u[1] & kSix, (u[2] >> 4 & kFour) | (u[1] >> 2 & kTop))};
}

template <bool kFifthBit>
inline void decode_q45_k(const std::byte* from, int64_t cols, float* to) {
  constexpr int64_t kCodes = kFifthBit ? 48 : 16;
  for (int64_t k = 0; k < cols; k += 256, from += kCodes + 128) {
    const EightSixes sixes = q4_k_scales(from + 4);
    alignas(32) float scales[8], minima[8];
    _mm256_store_ps(scales, scaled_bytes(sixes.scales, 0, _mm256_broadcastss_ps(half_at(from))));
    _mm256_store_ps(minima, scaled_bytes(sixes.minima, 0, _mm256_broadcastss_ps(half_at(from + 2))));
    for (int s = 0; s < 8; ++s, to += 32) {
      __m256i q = nibbles(load32(from + kCodes + s / 2 * 32), s % 2 != 0);
      if constexpr (kFifthBit)
        q = _mm256_or_si256(q, fifth(load32(from + 16), _mm256_set1_epi8(static_cast<char>(1 << s))));
      widen32(q, scales[s], minima[s], to);
    }
  }
}

inline void decode_q6_k(const std::byte* from, int64_t cols, float* to) {
  for (int64_t k = 0; k < cols; k += 256, from += 210) {
    const __m256 d = _mm256_broadcastss_ps(half_at(from + 208));
    const __m128i bytes = load16(from + 192);
    alignas(32) float scales[16];
    const auto scaled = [&](__m128i eight) {
      return _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight)));
    };
    _mm256_store_ps(scales, scaled(bytes));
    _mm256_store_ps(scales + 8, scaled(_mm_unpackhi_epi64(bytes, bytes)));
    for (int s = 0; s < 8; ++s, to += 32) {
      const __m256i low = nibbles(load32(from + s / 4 * 64 + s % 2 * 32), s % 4 >= 2);
      const __m256i top = _mm256_slli_epi16(crumbs(load32(from + 128 + s / 4 * 32), s % 4), 4);
      const __m256i q = _mm256_sub_epi8(_mm256_or_si256(low, top), _mm256_set1_epi8(32));
      widen16(_mm256_castsi256_si128(q), scales[2 * s], to);
      widen16(_mm256_extracti128_si256(q, 1), scales[2 * s + 1], to + 16);
    }
  }
}

// Twice the values of E2M1 for each of 32 codes.
inline __m256i e2m1_doubled(__m256i codes) {
  const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(quant::kE2m1Doubled));
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values), codes);
}

inline void decode_mxfp4(const std::byte* from, int64_t cols, float* to) {
  for (int64_t k = 0; k < cols; k += 32, from += 17, to += 32)
    widen32(e2m1_doubled(nibbles(load16(from + 1))), 0.5f * quant::decode_e8m0(std::to_integer<uint8_t>(*from)), to);
}

// Half of four UE4M3. Moved to where a half has its exponent and mantissa, subnormals included, they are 2^-8 of what
// they are; 0x7f stands for zero.
inline __m128 half_ue4m3(const std::byte* from) {
  int32_t four;
  std::memcpy(&four, from, 4);
  const __m128i most = _mm_set1_epi8(0x7f), u = _mm_and_si128(_mm_cvtsi32_si128(four), most);
  const __m128i kept = _mm_andnot_si128(_mm_cmpeq_epi8(u, most), u);
  const __m128 small = _mm_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(kept), 7));
  return _mm_mul_ps(small, _mm_set1_ps(0x1p7f));
}

inline void decode_nvfp4(const std::byte* from, int64_t cols, float* to) {
  for (int64_t k = 0; k < cols; k += 64, from += 36) {
    alignas(16) float scales[4];
    _mm_store_ps(scales, half_ue4m3(from));
    for (int i = 0; i < 2; ++i, to += 32) {
      // Each eight bytes hold 16 elements; in order, a half each.
      const __m256i q = _mm256_permute4x64_epi64(e2m1_doubled(nibbles(load16(from + 4 + 16 * i))), 0xd8);
      widen16(_mm256_castsi256_si128(q), scales[2 * i], to);
      widen16(_mm256_extracti128_si256(q, 1), scales[2 * i + 1], to + 16);
    }
  }
}

inline void decode_q2_k(const std::byte* from, int64_t cols, float* to) {
  for (int64_t k = 0; k < cols; k += 256, from += 84) {
    const __m256 d = _mm256_broadcastss_ps(half_at(from + 80)), dmin = _mm256_broadcastss_ps(half_at(from + 82));
    alignas(32) float scales[16], minima[16];
    for (int j = 0; j < 16; j += 8) {
      uint64_t both;
      std::memcpy(&both, from + j, 8);
      constexpr uint64_t kFour = 0x0f0f'0f0f'0f0f'0f0f;
      _mm256_store_ps(scales + j, scaled_bytes(both & kFour, 0, d));
      _mm256_store_ps(minima + j, scaled_bytes(both >> 4 & kFour, 0, dmin));
    }
    for (int s = 0; s < 8; ++s, to += 32) {
      const __m256i q = crumbs(load32(from + 16 + s / 4 * 32), s % 4);
      widen16(_mm256_castsi256_si128(q), scales[2 * s], minima[2 * s], to);
      widen16(_mm256_extracti128_si256(q, 1), scales[2 * s + 1], minima[2 * s + 1], to + 16);
    }
  }
}

inline void decode_q3_k(const std::byte* from, int64_t cols, float* to) {
  const __m256i four = _mm256_set1_epi8(4);
  for (int64_t k = 0; k < cols; k += 256, from += 110) {
    const __m256 d = _mm256_broadcastss_ps(half_at(from + 108));
    const SixteenSixes sixes = q3_k_scales(from + 96);
    alignas(32) float scales[16];
    for (int j = 0; j < 2; ++j) _mm256_store_ps(scales + 8 * j, scaled_bytes(sixes.of[j], 32, d));
    const __m256i high = load32(from);
    for (int s = 0; s < 8; ++s, to += 32) {
      // Four is taken away where the third bit is not set.
      const __m256i third = _mm256_and_si256(_mm256_set1_epi8(static_cast<char>(1 << s)), high);
      const __m256i missing = _mm256_and_si256(_mm256_cmpeq_epi8(third, _mm256_setzero_si256()), four);
      const __m256i q = _mm256_sub_epi8(crumbs(load32(from + 32 + s / 4 * 32), s % 4), missing);
      widen16(_mm256_castsi256_si128(q), scales[2 * s], to);
      widen16(_mm256_extracti128_si256(q, 1), scales[2 * s + 1], to + 16);
    }
  }
}

// 32 elements, codes at `qs`.
inline void decode_iq4_codes(const std::byte* qs, float scale, float* to) {
  const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(quant::kIq4Values));
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(qs)), four = _mm_set1_epi8(15);
  widen16(_mm_shuffle_epi8(values, _mm_and_si128(bytes, four)), scale, to);
  widen16(_mm_shuffle_epi8(values, _mm_and_si128(_mm_srli_epi16(bytes, 4), four)), scale, to + 16);
}

inline void decode_iq4_nl(const std::byte* from, int64_t cols, float* to) {
  for (int64_t k = 0; k < cols; k += 32, from += 18, to += 32)
    decode_iq4_codes(from + 2, _mm_cvtss_f32(half_at(from)), to);
}

inline void decode_iq4_xs(const std::byte* from, int64_t cols, float* to) {
  for (int64_t k = 0; k < cols; k += 256, from += 136) {
    alignas(32) float scales[8];
    _mm256_store_ps(scales, scaled_bytes(iq4_xs_scales(from), 32, _mm256_broadcastss_ps(half_at(from))));
    for (int j = 0; j < 8; ++j, to += 32) decode_iq4_codes(from + 8 + 16 * j, scales[j], to);
  }
}

}  // namespace
}  // namespace quire::gemm
