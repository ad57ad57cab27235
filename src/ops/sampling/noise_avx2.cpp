#include "core/m256.h"

#include "ops/sampling/noise_words.h"

namespace quire::sampling {
namespace {

struct Lanes4 {
  static constexpr int kLanes = 4;
  __m256i v;

  static Lanes4 set1(uint32_t x) { return {_mm256_set1_epi64x(x)}; }
  static Lanes4 count_from(uint32_t first) {
    return {_mm256_add_epi64(_mm256_set1_epi64x(first), _mm256_setr_epi64x(0, 1, 2, 3))};
  }
  static Lanes4 load(const uint32_t* p) {
    return {_mm256_cvtepu32_epi64(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
  }
  void store(uint32_t* p) const { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v); }
  friend Lanes4 operator^(Lanes4 a, Lanes4 b) { return {_mm256_xor_si256(a.v, b.v)}; }
};
inline Lanes4 xor3(Lanes4 a, Lanes4 b, Lanes4 c) {
  return a ^ (b ^ c);
}
inline Lanes4 multiply(Lanes4 a, Lanes4 b) {
  return {_mm256_mul_epu32(a.v, b.v)};
}
inline Lanes4 high(Lanes4 a) {
  return {_mm256_srli_epi64(a.v, 32)};
}
// The lower halves of both.
inline Lanes4 pack(Lanes4 a, Lanes4 b) {
  return {_mm256_blend_epi32(a.v, _mm256_slli_epi64(b.v, 32), 0xaa)};
}
// Of all 32-bit numbers, from here on.
inline Lanes4 lesser(Lanes4 a, Lanes4 b) {
  return {_mm256_min_epu32(a.v, b.v)};
}
inline bool any_at_most(Lanes4 a, uint32_t limit) {
  const __m256i most = _mm256_min_epu32(a.v, _mm256_set1_epi32(static_cast<int32_t>(limit)));
  return _mm256_movemask_epi8(_mm256_cmpeq_epi32(most, a.v)) != 0;
}

}  // namespace

constinit const NoiseCpu kNoiseAvx2{fill_words<Lanes4>, find_block<Lanes4>};

}  // namespace quire::sampling
