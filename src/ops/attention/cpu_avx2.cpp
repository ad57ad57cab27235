// paged_attention in float32 with AVX2, any even d: bf16 keys and values become float32 on the way in (a pair
// is one 32-bit lane: its first element in the low half), probabilities stay float32.
#include "core/m256.h"

#include "ops/attention/walk.h"

namespace quire::attention {
namespace {

__m256 low_half(__m256i pairs) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
}
__m256 high_half(__m256i pairs) {
  return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}
// All ones in the lanes below `count`.
__m256i first_lanes(int64_t count) {
  const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), index);
}

// All ones in the lanes of piece i (8 keys) that lie in [before, own).
__m256 own_lanes(int64_t before, int64_t own, int64_t i) {
  return _mm256_castsi256_ps(_mm256_andnot_si256(first_lanes(before - 8 * i), first_lanes(own - 8 * i)));
}

// 2^x for x <= 0 or so, about 1 ulp; 2^0 = 1 exactly; 0 below 2^-126, where no normal number is left.
__m256 exp2_avx2(__m256 x) {
  const __m256 least = _mm256_set1_ps(-126.0f), most = _mm256_set1_ps(127.0f);
  const __m256 dead = _mm256_cmp_ps(x, least, _CMP_LT_OQ);
  const __m256 y = _mm256_min_ps(most, _mm256_max_ps(least, x));
  const __m256 n = _mm256_round_ps(y, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m256 f = _mm256_sub_ps(y, n);
  __m256 p = _mm256_set1_ps(0.00015353361959569156f);
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.0013398873852565885f));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.00961843691766262f));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.055503323674201965f));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.24022647738456726f));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.6931471824645996f));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
  const __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
  const __m256 scaled = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), exponent));
  // max and min above drop a NaN; it comes back here.
  const __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
  return _mm256_blendv_ps(_mm256_andnot_ps(dead, scaled), x, nan);
}

float reduce_max(__m256 v) {
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}
float reduce_add(__m256 v) {
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}

// Eight float32 to bf16, round to nearest even; NaN stays NaN.
__m128i to_bf16_avx2(__m256 x) {
  const __m256i u = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
}

struct Avx2 {
  static constexpr int64_t kTileRows = 16;

  const RowTask& t;
  const TaskScratch& s;
  const bf16* values[kStagedKeys / kBlockTokens] = {};  // of the staged keys

  Avx2(const RowTask& task, const TaskScratch& scratch) : t(task), s(scratch) {}
  void end() {}

  void load_query(int64_t r, const bf16* from) {
    for (int64_t c = 0; c < t.d; ++c)
      s.queries[r * s.pitch + c] = __builtin_bit_cast(float, static_cast<uint32_t>(from[c].bits) << 16);
  }

  // A value block that the task's last row sees in part is copied, and what lies beyond zeroed: 0 times a NaN
  // in the cache would not be 0.
  void stage_values(int64_t key, int64_t count) {
    for (int64_t k = 0; k < count; k += kBlockTokens) {
      const bf16* from = t.v + t.blocks[(key + k) / kBlockTokens] * t.v_block;
      values[k / kBlockTokens] = from;
      const int64_t left = count - k;
      if (left >= kBlockTokens) continue;
      for (int64_t i = 0; i < kBlockTokens * t.d; ++i) {
        const int64_t token = i / (2 * t.d) * 2 + i % 2;
        s.values[i] = token < left ? from[i] : bf16{};
      }
      values[k / kBlockTokens] = s.values;
    }
  }

  void scores(int64_t row, int64_t count, int64_t key, int64_t seen) {
    const int32_t* table = t.blocks + key / kBlockTokens;
    for (int64_t b = 0; b * kBlockTokens < seen; ++b) {
      const bf16* k = t.k + table[b] * t.k_block;
      int64_t r = 0;
      for (; r + 4 <= count; r += 4) scores_of<4>(row + r, r, k, b);
      if (count & 2) scores_of<2>(row + r, r, k, b), r += 2;
      if (count & 1) scores_of<1>(row + r, r, k, b);
    }
  }

  template <int kRows>
  void scores_of(int64_t row, int64_t r, const bf16* k, int64_t b) {
    __m256 acc[kRows][2];
    for (auto& pair : acc) pair[0] = pair[1] = _mm256_setzero_ps();
    const float* q = s.queries + row * s.pitch;
    for (int64_t c = 0; c < t.d; c += 2) {
      const auto* pairs = reinterpret_cast<const __m256i*>(k + c * kBlockTokens);
      const __m256i k0 = _mm256_loadu_si256(pairs), k1 = _mm256_loadu_si256(pairs + 1);
      for (int i = 0; i < kRows; ++i) {
        const __m256 even = _mm256_broadcast_ss(q + i * s.pitch + c);
        const __m256 odd = _mm256_broadcast_ss(q + i * s.pitch + c + 1);
        acc[i][0] = _mm256_fmadd_ps(odd, high_half(k0), _mm256_fmadd_ps(even, low_half(k0), acc[i][0]));
        acc[i][1] = _mm256_fmadd_ps(odd, high_half(k1), _mm256_fmadd_ps(even, low_half(k1), acc[i][1]));
      }
    }
    for (int i = 0; i < kRows; ++i) {
      float* to = s.scores + (r + i) * kGroupKeys + b * kBlockTokens;
      _mm256_store_ps(to, acc[i][0]);
      _mm256_store_ps(to + 8, acc[i][1]);
    }
  }

  void accumulate(int64_t row, int64_t count, int64_t from, int64_t seen, bool first) {
    const bf16* const* blocks = values + from / kBlockTokens;
    int64_t r = 0;
    for (; r + 4 <= count; r += 4) accumulate_of<4>(row + r, r, blocks, seen, first);
    if (count & 2) accumulate_of<2>(row + r, r, blocks, seen, first), r += 2;
    if (count & 1) accumulate_of<1>(row + r, r, blocks, seen, first);
  }

  template <int kRows>
  void accumulate_of(int64_t row, int64_t r, const bf16* const* blocks, int64_t seen, bool first) {
    for (int64_t c = 0; c < t.d; c += 16) {
      const __m256i lanes0 = first_lanes(t.d - c), lanes1 = first_lanes(t.d - c - 8);
      float* sums = s.sums + row * s.pitch + c;
      __m256 acc[kRows][2];
      for (int i = 0; i < kRows; ++i) {
        acc[i][0] = first ? _mm256_setzero_ps() : _mm256_load_ps(sums + i * s.pitch);
        acc[i][1] = first ? _mm256_setzero_ps() : _mm256_load_ps(sums + i * s.pitch + 8);
      }
      for (int64_t j = 0; 2 * j < seen; ++j) {
        const bf16* block = blocks[2 * j / kBlockTokens];
        const auto* v = reinterpret_cast<const int*>(block + (j % (kBlockTokens / 2) * t.d + c) * 2);
        const __m256i v0 = _mm256_maskload_epi32(v, lanes0), v1 = _mm256_maskload_epi32(v + 8, lanes1);
        for (int i = 0; i < kRows; ++i) {
          const float* p = s.scores + (r + i) * kGroupKeys + 2 * j;
          const __m256 even = _mm256_broadcast_ss(p), odd = _mm256_broadcast_ss(p + 1);
          acc[i][0] = _mm256_fmadd_ps(odd, high_half(v0), _mm256_fmadd_ps(even, low_half(v0), acc[i][0]));
          acc[i][1] = _mm256_fmadd_ps(odd, high_half(v1), _mm256_fmadd_ps(even, low_half(v1), acc[i][1]));
        }
      }
      for (int i = 0; i < kRows; ++i) {
        _mm256_store_ps(sums + i * s.pitch, acc[i][0]);
        _mm256_store_ps(sums + i * s.pitch + 8, acc[i][1]);
      }
    }
  }

  template <class Beside>
  void softmax(int64_t row, int64_t count, int64_t key, int64_t seen, bool first, float scale, Beside&& beside) {
    for (int64_t r = row; r < row + count; ++r) {
      beside(r);
      const float keep = softmax_row(s.scores + (r - row) * kGroupKeys, keys_before(t, r, key),
                                     own_keys(t, r, key, seen), seen, scale, s.max[r], s.total[r]);
      if (keep != 1.0f && !first) rescale(s.sums + r * s.pitch, t.d, keep);
    }
  }

  // Of the `seen` scores the row looks at those from `before` on, below `own`.
  static float softmax_row(float* p, int64_t before, int64_t own, int64_t seen, float scale, float& max, float& total) {
    const int64_t pieces = (seen + 7) / 8;
    if (own <= before) {
      for (int64_t i = 0; i < pieces; ++i) _mm256_store_ps(p + 8 * i, _mm256_setzero_ps());
      return 1.0f;
    }
    const __m256 lowest = _mm256_set1_ps(-__builtin_inff());
    __m256 m = lowest;
    for (int64_t i = 0; 8 * i < own; ++i) {
      const __m256 mine = own_lanes(before, own, i);
      m = _mm256_max_ps(m, _mm256_blendv_ps(lowest, _mm256_load_ps(p + 8 * i), mine));
    }
    const float group_max = reduce_max(m) * scale, old = max, now = old > group_max ? old : group_max;
    const __m256 c = _mm256_set1_ps(scale), shift = _mm256_set1_ps(now);
    __m256 sum = _mm256_setzero_ps();
    for (int64_t i = 0; i < pieces; ++i) {
      const __m256 mine = own_lanes(before, own, i);
      const __m256 e = exp2_avx2(_mm256_fmsub_ps(_mm256_load_ps(p + 8 * i), c, shift));
      const __m256 kept = _mm256_and_ps(e, mine);
      sum = _mm256_add_ps(sum, kept);
      _mm256_store_ps(p + 8 * i, kept);
    }
    const float keep = _mm256_cvtss_f32(exp2_avx2(_mm256_set1_ps(old - now)));
    max = now;
    total = total * keep + reduce_add(sum);
    return keep;
  }

  static void rescale(float* sums, int64_t d, float keep) {
    const __m256 k = _mm256_set1_ps(keep);
    for (int64_t c = 0; c < d; c += 8) _mm256_store_ps(sums + c, _mm256_mul_ps(_mm256_load_ps(sums + c), k));
  }

  static void finish(const float* sums, float inv_total, const bf16* gate, bf16* out, int64_t d) {
    for (int64_t c = 0; c < d; c += 8) {
      const int64_t count = smaller(8, d - c);
      __m256 x = _mm256_load_ps(sums + c);
      // Padding may or may not have turned a negative zero positive: do it always.
      const __m256 magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
      const __m256 normal = _mm256_cmp_ps(magnitude, _mm256_set1_ps(__FLT_MIN__), _CMP_NLT_UQ);
      x = _mm256_and_ps(normal, _mm256_mul_ps(x, _mm256_set1_ps(inv_total)));
      if (gate != nullptr) {
        alignas(32) uint32_t bits[8] = {};
        for (int64_t i = 0; i < count; ++i) bits[i] = static_cast<uint32_t>(gate[c + i].bits) << 16;
        const __m256 g = _mm256_load_ps(reinterpret_cast<const float*>(bits));
        const __m256 e = exp2_avx2(_mm256_mul_ps(g, _mm256_set1_ps(-kLog2e)));
        x = _mm256_div_ps(x, _mm256_add_ps(e, _mm256_set1_ps(1.0f)));
      }
      alignas(16) bf16 rounded[8];
      _mm_store_si128(reinterpret_cast<__m128i*>(rounded), to_bf16_avx2(x));
      __builtin_memcpy(out + c, rounded, static_cast<size_t>(2 * count));
    }
  }
};

}  // namespace

void attend_avx2(const RowTask& t, const TaskScratch& s) {
  walk<Avx2>(t, s);
}

}  // namespace quire::attention
