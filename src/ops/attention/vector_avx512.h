// Softmax and output in AVX-512, shared by the AMX and the AVX-512 kernel (internal linkage in each).
#pragma once

#include <immintrin.h>

#include "ops/attention/walk.h"
#include "ops/simd/exp2_avx512.h"

namespace quire::attention {
namespace {

inline __m512i to_bf16_pair(__m512 low, __m512 high) {
  return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

inline void rescale_avx512(float* sums, int64_t d, float keep) {
  const __m512 k = _mm512_set1_ps(keep);
  for (int64_t c = 0; c < d; c += 16) _mm512_store_ps(sums + c, _mm512_mul_ps(_mm512_load_ps(sums + c), k));
}

// Lane i of the result combines the 16 lanes of v[i], by the same tree for every i: ((l0 l2)(l1 l3)) of each
// quarter, then quarters ((q0 q1)(q2 q3)). Sixteen reductions for the shuffles of three.
template <class Op>
__m512 reduce_rows(const __m512* v, Op op) {
  __m512 pairs[8], quads[4];
  for (int i = 0; i < 8; ++i)
    pairs[i] = op(_mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]), _mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]));
  for (int i = 0; i < 4; ++i) {
    const __m512d a = _mm512_castps_pd(pairs[2 * i]), b = _mm512_castps_pd(pairs[2 * i + 1]);
    quads[i] = op(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
  }
  const auto halves = [&](__m512 a, __m512 b) {
    return op(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
  };
  return halves(halves(quads[0], quads[1]), halves(quads[2], quads[3]));
}

// Which of a group's keys a row may look at: from `before` on, below `end`.
struct OwnKeys {
  int64_t before = 0, end = 0;
  // Lanes of piece i (16 keys) below a number of keys.
  static __mmask16 below(int64_t keys, int64_t i) {
    const int64_t left = keys - 16 * i;
    return static_cast<__mmask16>(left >= 16 ? 0xffff : left <= 0 ? 0 : (1u << left) - 1);
  }
  __mmask16 lanes(int64_t i) const { return static_cast<__mmask16>(below(end, i) & ~below(before, i)); }
};

// Maximum of a row's scores, lane by lane.
template <bool kWhole>
__m512 max_of_row(const float* s, const OwnKeys& own, int64_t pieces) {
  const __m512 lowest = _mm512_set1_ps(-__builtin_inff());
  __m512 m0 = lowest, m1 = lowest;
  for (int64_t i = 0; i < (kWhole ? kGroupKeys / 16 : pieces); i += 2) {
    const __mmask16 l0 = kWhole ? 0xffff : own.lanes(i), l1 = kWhole ? 0xffff : own.lanes(i + 1);
    m0 = _mm512_max_ps(m0, _mm512_mask_load_ps(lowest, l0, s + 16 * i));
    m1 = _mm512_max_ps(m1, _mm512_mask_load_ps(lowest, l1, s + 16 * i + 16));
  }
  return _mm512_max_ps(m0, m1);
}

// Scores of a row become probabilities, stored as bf16 from the start of the row; returns their sums lane by
// lane. Lanes past the row become exact zeros.
template <bool kWhole>
__m512 exp_of_row(float* s, const OwnKeys& own, int64_t pieces, __m512 scale, __m512 max) {
  __m512 sum0 = _mm512_setzero_ps(), sum1 = _mm512_setzero_ps();
  for (int64_t i = 0; i < (kWhole ? kGroupKeys / 16 : pieces); i += 2) {
    __m512 e0 = simd::exp2(_mm512_fmsub_ps(_mm512_load_ps(s + 16 * i), scale, max));
    __m512 e1 = simd::exp2(_mm512_fmsub_ps(_mm512_load_ps(s + 16 * i + 16), scale, max));
    if (!kWhole) {
      e0 = _mm512_maskz_mov_ps(own.lanes(i), e0);
      e1 = _mm512_maskz_mov_ps(own.lanes(i + 1), e1);
    }
    sum0 = _mm512_add_ps(sum0, e0);
    sum1 = _mm512_add_ps(sum1, e1);
    _mm512_store_si512(s + 8 * i, to_bf16_pair(e0, e1));
  }
  return _mm512_add_ps(sum0, sum1);
}

// 16 rows (or the last few of a tile) at once: their maxima, factors and sums are one vector each.
template <bool kWhole, class Beside>
void softmax_rows(const RowTask& t, const TaskScratch& s, int64_t row, int64_t count, float* scores, int64_t key,
                  int64_t seen, bool first, float scale, Beside&& beside) {
  // Scores are there for whole pieces of 16 keys, probabilities are wanted for pairs of pieces: a row's last
  // piece may be read without having been written, and is masked.
  const int64_t pieces = (seen + 31) / 32 * 2;
  const auto rows = static_cast<__mmask16>((1u << count) - 1);
  // own_keys() of every row with one division.
  OwnKeys own[16];
  for (int64_t i = 0, token = row / t.group, head = row % t.group; i < count; ++i) {
    own[i] = {t.first_key(t.position + token) - key, smaller(seen, t.end_of(token) - key)};
    if (++head == t.group) head = 0, ++token;
  }
  __m512 lanes[16];
  for (int64_t i = 0; i < 16; ++i)
    lanes[i] = i < count ? max_of_row<kWhole>(scores + i * kGroupKeys, own[i], pieces) : _mm512_setzero_ps();
  const auto larger = [](__m512 a, __m512 b) { return _mm512_max_ps(a, b); };
  const __m512 old = _mm512_loadu_ps(s.max + row);
  const __m512 now = _mm512_max_ps(_mm512_mul_ps(reduce_rows(lanes, larger), _mm512_set1_ps(scale)), old);
  // A row whose window begins behind this group has seen nothing yet: -inf - -inf is no number.
  const __mmask16 none = _mm512_cmp_ps_mask(now, _mm512_set1_ps(-__builtin_inff()), _CMP_EQ_OQ);
  const __m512 keep = _mm512_mask_mov_ps(simd::exp2(_mm512_sub_ps(old, now)), none, _mm512_set1_ps(1.0f));
  alignas(64) float maximum[16];
  _mm512_store_ps(maximum, now);
  for (int64_t i = 0; i < count; ++i) {
    beside(row + i);
    lanes[i] =
        exp_of_row<kWhole>(scores + i * kGroupKeys, own[i], pieces, _mm512_set1_ps(scale), _mm512_set1_ps(maximum[i]));
  }
  const __m512 sums = reduce_rows(lanes, [](__m512 a, __m512 b) { return _mm512_add_ps(a, b); });
  _mm512_mask_storeu_ps(s.max + row, rows, now);
  _mm512_mask_storeu_ps(s.total + row, rows, _mm512_fmadd_ps(_mm512_loadu_ps(s.total + row), keep, sums));
  if (first) return;
  alignas(64) float factor[16];
  _mm512_store_ps(factor, keep);
  unsigned changed = _mm512_mask_cmp_ps_mask(rows, keep, _mm512_set1_ps(1.0f), _CMP_NEQ_UQ);
  for (; changed != 0; changed &= changed - 1) {
    const int i = __builtin_ctz(changed);
    rescale_avx512(s.sums + (row + i) * s.pitch, t.d, factor[i]);
  }
}

// The walk's softmax step for a tile of rows.
template <class Beside>
void softmax_avx512(const RowTask& t, const TaskScratch& s, int64_t row, int64_t count, int64_t key, int64_t seen,
                    bool first, float scale, Beside&& beside) {
  for (int64_t r = 0; r < count; r += 16) {
    const int64_t n = smaller(16, count - r);
    float* scores = s.scores + r * kGroupKeys;
    // The first row sees the fewest of the group's last keys, and the last row of its first ones.
    if (own_keys(t, row + r, key, seen) == kGroupKeys && keys_before(t, row + r + n - 1, key) == 0)
      softmax_rows<true>(t, s, row + r, n, scores, key, seen, first, scale, beside);
    else
      softmax_rows<false>(t, s, row + r, n, scores, key, seen, first, scale, beside);
  }
}

// out = sums * inv_total * sigmoid(gate), rounded once to bf16.
inline void finish_avx512(const float* sums, float inv_total, const bf16* gate, bf16* out, int64_t d) {
  for (int64_t c = 0; c < d; c += 16) {
    const auto lanes = static_cast<__mmask16>(d - c >= 16 ? 0xffff : (1u << (d - c)) - 1);
    __m512 x = _mm512_load_ps(sums + c);
    // A tile's padding may or may not have flushed a denormal or a negative zero: do it always.
    const __mmask16 normal = _mm512_cmp_ps_mask(_mm512_abs_ps(x), _mm512_set1_ps(__FLT_MIN__), _CMP_NLT_UQ);
    x = _mm512_maskz_mul_ps(normal, x, _mm512_set1_ps(inv_total));
    if (gate != nullptr) {
      const __m512i bits = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, gate + c));
      const __m512 g = _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
      const __m512 e = simd::exp2(_mm512_mul_ps(g, _mm512_set1_ps(-kLog2e)));
      x = _mm512_div_ps(x, _mm512_add_ps(e, _mm512_set1_ps(1.0f)));
    }
    _mm256_mask_storeu_epi16(out + c, lanes, (__m256i)_mm512_cvtneps_pbh(x));
  }
}

}  // namespace
}  // namespace quire::attention
