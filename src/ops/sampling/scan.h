// Passes over a row of logits, eight at a time. Rows are cut into blocks of 64 whose maxima are kept: later
// passes skip blocks that hold nothing above their threshold, and the k-th largest maximum bounds the k-th
// largest logit from below. Sums are float32 within a block, by a fixed tree, and float64 across blocks in
// ascending order.
#pragma once

#include "core/m256.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>

namespace quire::sampling {

inline constexpr int64_t kBlock = 64;
inline constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

inline int64_t block_count(int64_t n) {
  return (n + kBlock - 1) / kBlock;
}

// A token that is still in the draw.
struct Candidate {
  float logit;
  float weight;  // exp((logit - max) / temperature)
  int32_t id;
};

// e^x for x <= 0: relative error below 2e-7; 0 below -87 (where float32 becomes subnormal), NaN for NaN.
// x = n ln 2 + r with |r| <= ln 2 / 2; the Taylor polynomial of degree 7 leaves an error below 6e-9.
inline __m256 exp8(__m256 x) {
  const __m256 n =
      _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x);  // ln 2 in two parts: n * the first is exact
  r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
  __m256 p = _mm256_set1_ps(1.0f / 5040);
  for (const float c : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f})
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(c));
  const __m256i exponent = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  const __m256 y = _mm256_mul_ps(p, _mm256_castsi256_ps(exponent));
  const __m256 tiny = _mm256_cmp_ps(x, _mm256_set1_ps(-87.0f), _CMP_LT_OQ);
  return _mm256_andnot_ps(tiny, y);
}

inline float sum8(__m256 v) {
  const __m128 a = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  const __m128 b = _mm_add_ps(a, _mm_movehl_ps(a, a));
  return _mm_cvtss_f32(_mm_add_ss(b, _mm_shuffle_ps(b, b, 1)));
}
inline float max8(__m256 v) {
  const __m128 a = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  const __m128 b = _mm_max_ps(a, _mm_movehl_ps(a, a));
  return _mm_cvtss_f32(_mm_max_ss(b, _mm_shuffle_ps(b, b, 1)));
}

// A row of logits: the values, and the maximum of every block.
struct Row {
  const float* logits;
  int64_t size;
  float* block_max;  // [block_count(size)]
  float max = kMinusInf;

  // Calls fn(block, logits of the block): 64 values, the last block filled up with -infinity.
  template <class Fn>
  void for_each_block(Fn&& fn) const {
    const int64_t full = size / kBlock;
    for (int64_t b = 0; b < full; ++b) fn(b, logits + b * kBlock);
    if (full * kBlock == size) return;
    float tail[kBlock];
    std::fill(tail, tail + kBlock, kMinusInf);
    std::memcpy(tail, logits + full * kBlock, static_cast<size_t>(size - full * kBlock) * sizeof(float));
    fn(full, static_cast<const float*>(tail));
  }
};

inline float max_of_block(const float* x) {
  __m256 m = _mm256_loadu_ps(x);
  for (int i = 8; i < kBlock; i += 8) m = _mm256_max_ps(m, _mm256_loadu_ps(x + i));
  return max8(m);
}

// Fills block_max and max; false if a logit is NaN or +infinity.
inline bool scan(Row& row) {
  __m256 nan = _mm256_setzero_ps();
  row.max = kMinusInf;
  row.for_each_block([&](int64_t b, const float* x) {
    __m256 m = _mm256_set1_ps(kMinusInf);
    for (int i = 0; i < kBlock; i += 8) {
      const __m256 v = _mm256_loadu_ps(x + i);
      nan = _mm256_or_ps(nan, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
      m = _mm256_max_ps(m, v);
    }
    row.block_max[b] = max8(m);
    row.max = std::max(row.max, row.block_max[b]);
  });
  return _mm256_movemask_ps(nan) == 0 && row.max <= std::numeric_limits<float>::max();
}

// The first token whose logit is the maximum.
inline int32_t first_max(const Row& row) {
  int64_t b = 0;
  while (row.block_max[b] != row.max) ++b;
  int64_t i = b * kBlock;
  while (row.logits[i] != row.max) ++i;
  return static_cast<int32_t>(i);
}

// How many logits are larger than x.
inline int64_t count_above(const Row& row, float x) {
  const __m256 bound = _mm256_set1_ps(x);
  int64_t n = 0;
  row.for_each_block([&](int64_t b, const float* values) {
    if (row.block_max[b] <= x) return;
    for (int i = 0; i < kBlock; i += 8) {
      const __m256 above = _mm256_cmp_ps(_mm256_loadu_ps(values + i), bound, _CMP_GT_OQ);
      n += __builtin_popcount(static_cast<unsigned>(_mm256_movemask_ps(above)));
    }
  });
  return n;
}

// The softmax of a row before its normalisation: exp((logit - max) * inverse_temperature).
struct Softmax {
  float max;
  float inverse_temperature;

  __m256 exponent(const float* x) const {
    const __m256 d = _mm256_sub_ps(_mm256_loadu_ps(x), _mm256_set1_ps(max));
    return _mm256_mul_ps(d, _mm256_set1_ps(inverse_temperature));
  }
  float exponent(float logit) const { return (logit - max) * inverse_temperature; }  // the same bits
  float lowest() const { return max - 88.0f / inverse_temperature; }                 // what lies below has weight 0
};

// The sum of the weights of a row.
inline double sum_weights(const Row& row, const Softmax& s) {
  const float lowest = s.lowest();
  double total = 0;
  row.for_each_block([&](int64_t b, const float* x) {
    if (row.block_max[b] < lowest) return;
    __m256 v = exp8(s.exponent(x));
    for (int i = 8; i < kBlock; i += 8) v = _mm256_add_ps(v, exp8(s.exponent(x + i)));
    total += sum8(v);
  });
  return total;
}

// The sum of weight * exponent: what the entropy needs.
inline double sum_weighted_exponents(const Row& row, const Softmax& s) {
  const float lowest = s.lowest();
  double total = 0;
  row.for_each_block([&](int64_t b, const float* x) {
    if (row.block_max[b] < lowest) return;
    __m256 v = _mm256_setzero_ps();
    for (int i = 0; i < kBlock; i += 8) {
      const __m256 e = _mm256_max_ps(s.exponent(x + i), _mm256_set1_ps(-1000.0f));  // 0 * -infinity is NaN
      v = _mm256_add_ps(v, _mm256_mul_ps(exp8(e), e));
    }
    total += sum8(v);
  });
  return total;
}

// Tokens for whose logits in(block of 8 logits) has the sign bit set, except those at -infinity, in the order
// of their ids; blocks whose maximum is below `low` are skipped. Weights are left unset. Stops early with a
// count above `limit`; `out` has room for limit + 64.
template <class In>
int64_t gather(const Row& row, float low, int64_t limit, Candidate* out, In in) {
  const __m256 finite = _mm256_set1_ps(std::numeric_limits<float>::lowest());
  int64_t n = 0;
  row.for_each_block([&](int64_t b, const float* x) {
    if (row.block_max[b] < low || n > limit) return;
    for (int i = 0; i < kBlock; i += 8) {
      const __m256 v = _mm256_loadu_ps(x + i);
      const __m256 wanted = _mm256_and_ps(in(x + i), _mm256_cmp_ps(v, finite, _CMP_GE_OQ));
      for (auto bits = static_cast<unsigned>(_mm256_movemask_ps(wanted)); bits != 0; bits &= bits - 1) {
        const int j = i + __builtin_ctz(bits);
        out[n++] = {x[j], 0.0f, static_cast<int32_t>(b * kBlock + j)};
      }
    }
  });
  return n;
}
// Tokens with logit >= low.
inline int64_t gather_above(const Row& row, float low, Candidate* out,
                            int64_t limit = std::numeric_limits<int64_t>::max()) {
  const __m256 bound = _mm256_set1_ps(low);
  return gather(row, low, limit, out,
                [&](const float* x) { return _mm256_cmp_ps(_mm256_loadu_ps(x), bound, _CMP_GE_OQ); });
}

// A histogram finds where a sum in the order of some key >= 0 reaches its target without sorting: sixteenths
// of a nat up to 88, where weights end, and one bin for the rest. Keys fall into bins monotonically, so all
// bins but one lie wholly before or behind the border.
inline constexpr int kBins = 88 * 16 + 1;
inline __m256i bin8(__m256 key) {
  const __m256 scaled = _mm256_mul_ps(key, _mm256_set1_ps(16.0f));
  return _mm256_cvttps_epi32(_mm256_min_ps(scaled, _mm256_set1_ps(kBins - 1)));
}
// Adds amount8(logits) to the bins of key8(logits).
template <class Key, class Amount>
void add_to_bins(const Row& row, double* bins, Key key8, Amount amount8) {
  std::fill(bins, bins + kBins, 0.0);
  row.for_each_block([&](int64_t, const float* x) {
    for (int i = 0; i < kBlock; i += 8) {
      alignas(32) int32_t bin[8];
      alignas(32) float amount[8];
      _mm256_store_si256(reinterpret_cast<__m256i*>(bin), bin8(key8(x + i)));
      _mm256_store_ps(amount, amount8(x + i));
      for (int j = 0; j < 8; ++j) bins[bin[j]] += static_cast<double>(amount[j]);
    }
  });
}

// Fills in the weights and returns their sum.
inline double weigh(Candidate* c, int64_t n, const Softmax& s) {
  double total = 0;
  for (int64_t i = 0; i < n; i += 8) {
    const int64_t m = std::min<int64_t>(8, n - i);
    alignas(32) float x[8];
    std::fill(x, x + 8, kMinusInf);
    for (int64_t j = 0; j < m; ++j) x[j] = c[i + j].logit;
    const __m256 w = exp8(s.exponent(x));
    _mm256_store_ps(x, w);
    for (int64_t j = 0; j < m; ++j) c[i + j].weight = x[j];
    total += sum8(w);
  }
  return total;
}

// A value that at least k logits reach: the k-th largest block maximum. `scratch` holds block_count floats.
inline float at_least_k_reach(const Row& row, int64_t k, float* scratch) {
  const int64_t blocks = block_count(row.size);
  if (k > blocks) return kMinusInf;
  std::copy(row.block_max, row.block_max + blocks, scratch);
  std::nth_element(scratch, scratch + (k - 1), scratch + blocks, std::greater<>());
  return scratch[k - 1];
}

}  // namespace quire::sampling
