#include <immintrin.h>

#include "ops/sampling/noise_words.h"

namespace quire::sampling {
namespace {

struct Lanes8 {
  static constexpr int kLanes = 8;
  __m512i v;

  static Lanes8 set1(uint32_t x) { return {_mm512_set1_epi64(x)}; }
  static Lanes8 count_from(uint32_t first) {
    return {_mm512_add_epi64(_mm512_set1_epi64(first), _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7))};
  }
  static Lanes8 load(const uint32_t* p) {
    return {_mm512_cvtepu32_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
  }
  void store(uint32_t* p) const { _mm512_storeu_si512(p, v); }
  friend Lanes8 operator^(Lanes8 a, Lanes8 b) { return {_mm512_xor_si512(a.v, b.v)}; }
};
inline Lanes8 xor3(Lanes8 a, Lanes8 b, Lanes8 c) {
  return {_mm512_ternarylogic_epi64(a.v, b.v, c.v, 0x96)};
}
inline Lanes8 multiply(Lanes8 a, Lanes8 b) {
  return {_mm512_mul_epu32(a.v, b.v)};
}
inline Lanes8 high(Lanes8 a) {
  return {_mm512_srli_epi64(a.v, 32)};
}
// The lower halves of both.
inline Lanes8 pack(Lanes8 a, Lanes8 b) {
  return {_mm512_mask_blend_epi32(0xaaaa, a.v, _mm512_slli_epi64(b.v, 32))};
}
// Of all 32-bit numbers, from here on.
inline Lanes8 lesser(Lanes8 a, Lanes8 b) {
  return {_mm512_min_epu32(a.v, b.v)};
}
inline bool any_at_most(Lanes8 a, uint32_t limit) {
  return _mm512_cmple_epu32_mask(a.v, _mm512_set1_epi32(static_cast<int32_t>(limit))) != 0;
}

}  // namespace

constinit const NoiseCpu kNoiseAvx512{fill_words<Lanes8>, find_block<Lanes8>};

}  // namespace quire::sampling
