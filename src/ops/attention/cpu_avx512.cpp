// paged_attention with vdpbf16ps, any even d: a broadcast pair of query elements meets 16 keys, a broadcast
// pair of probabilities meets 16 value elements, both in the cache's own layout.
#include <immintrin.h>

#include "ops/attention/vector_avx512.h"

namespace quire::attention {
namespace {

__m512bh broadcast_pair(const bf16* p) {
  int32_t bits;
  __builtin_memcpy(&bits, p, 4);
  return (__m512bh)_mm512_set1_epi32(bits);
}

struct Avx512 {
  static constexpr int64_t kTileRows = 16;

  const RowTask& t;
  const TaskScratch& s;
  bf16* queries;
  const bf16* values[kStagedKeys / kBlockTokens] = {};  // of the staged keys

  Avx512(const RowTask& task, const TaskScratch& scratch)
      : t(task), s(scratch), queries(reinterpret_cast<bf16*>(scratch.queries)) {}
  void end() {}

  void load_query(int64_t r, const bf16* from) {
    __builtin_memcpy(queries + r * t.d, from, static_cast<size_t>(2 * t.d));
  }

  // Value blocks are read where they lie, except one that the task's last row sees in part: 0 times a NaN in
  // the cache would not be 0, so what lies beyond is zeroed in a copy.
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
    const int64_t blocks = (seen + kBlockTokens - 1) / kBlockTokens;
    const int32_t* table = t.blocks + key / kBlockTokens;
    for (int64_t b = 0; b < blocks; b += 2) {
      const bf16* left = t.k + table[b] * t.k_block;
      const bf16* right = b + 1 < blocks ? t.k + table[b + 1] * t.k_block : left;
      int64_t r = 0;
      for (; r + 8 <= count; r += 8) scores_of<8>(row + r, r, left, right, b);
      if (count & 4) scores_of<4>(row + r, r, left, right, b), r += 4;
      if (count & 2) scores_of<2>(row + r, r, left, right, b), r += 2;
      if (count & 1) scores_of<1>(row + r, r, left, right, b);
    }
  }

  template <int kRows>
  void scores_of(int64_t row, int64_t r, const bf16* left, const bf16* right, int64_t b) {
    __m512 acc[kRows][2];
    for (auto& pair : acc) pair[0] = pair[1] = _mm512_setzero_ps();
    const bf16* q = queries + row * t.d;
    for (int64_t c = 0; c < t.d; c += 2) {
      const auto k0 = (__m512bh)_mm512_loadu_si512(left + c * kBlockTokens);
      const auto k1 = (__m512bh)_mm512_loadu_si512(right + c * kBlockTokens);
      for (int i = 0; i < kRows; ++i) {
        const __m512bh pair = broadcast_pair(q + i * t.d + c);
        acc[i][0] = _mm512_dpbf16_ps(acc[i][0], pair, k0);
        acc[i][1] = _mm512_dpbf16_ps(acc[i][1], pair, k1);
      }
    }
    for (int i = 0; i < kRows; ++i) {
      float* to = s.scores + (r + i) * kGroupKeys + b * kBlockTokens;
      _mm512_store_ps(to, acc[i][0]);
      _mm512_store_ps(to + 16, acc[i][1]);
    }
  }

  void accumulate(int64_t row, int64_t count, int64_t from, int64_t seen, bool first) {
    const bf16* const* blocks = values + from / kBlockTokens;
    int64_t r = 0;
    for (; r + 8 <= count; r += 8) accumulate_of<8>(row + r, r, blocks, seen, first);
    if (count & 4) accumulate_of<4>(row + r, r, blocks, seen, first), r += 4;
    if (count & 2) accumulate_of<2>(row + r, r, blocks, seen, first), r += 2;
    if (count & 1) accumulate_of<1>(row + r, r, blocks, seen, first);
  }

  template <int kRows>
  void accumulate_of(int64_t row, int64_t r, const bf16* const* blocks, int64_t seen, bool first) {
    const auto* p = reinterpret_cast<const bf16*>(s.scores + r * kGroupKeys);
    for (int64_t c = 0; c < t.d; c += 32) {
      const int64_t left = t.d - c;
      const auto lanes0 = static_cast<__mmask16>(left >= 16 ? 0xffff : (1u << left) - 1);
      const auto lanes1 = static_cast<__mmask16>(left >= 32 ? 0xffff : left <= 16 ? 0 : (1u << (left - 16)) - 1);
      float* sums = s.sums + row * s.pitch + c;
      __m512 acc[kRows][2];
      for (int i = 0; i < kRows; ++i) {
        acc[i][0] = first ? _mm512_setzero_ps() : _mm512_load_ps(sums + i * s.pitch);
        acc[i][1] = first ? _mm512_setzero_ps() : _mm512_load_ps(sums + i * s.pitch + 16);
      }
      for (int64_t b = 0; b * kBlockTokens < seen; ++b) {
        const int64_t pairs = (smaller(kBlockTokens, seen - b * kBlockTokens) + 1) / 2;
        for (int64_t j = 0; j < pairs; ++j) {
          const bf16* v = blocks[b] + (j * t.d + c) * 2;
          const auto v0 = (__m512bh)_mm512_maskz_loadu_epi32(lanes0, v);
          const auto v1 = (__m512bh)_mm512_maskz_loadu_epi32(lanes1, v + 32);
          for (int i = 0; i < kRows; ++i) {
            const __m512bh pair = broadcast_pair(p + i * kGroupKeys * 2 + b * kBlockTokens + 2 * j);
            acc[i][0] = _mm512_dpbf16_ps(acc[i][0], pair, v0);
            acc[i][1] = _mm512_dpbf16_ps(acc[i][1], pair, v1);
          }
        }
      }
      for (int i = 0; i < kRows; ++i) {
        _mm512_store_ps(sums + i * s.pitch, acc[i][0]);
        _mm512_store_ps(sums + i * s.pitch + 16, acc[i][1]);
      }
    }
  }

  template <class Beside>
  void softmax(int64_t row, int64_t count, int64_t key, int64_t seen, bool first, float scale, Beside&& beside) {
    softmax_avx512(t, s, row, count, key, seen, first, scale, beside);
  }
  static void finish(const float* sums, float inv_total, const bf16* gate, bf16* out, int64_t d) {
    finish_avx512(sums, inv_total, gate, out, d);
  }
};

}  // namespace

void attend_avx512(const RowTask& t, const TaskScratch& s) {
  walk<Avx512>(t, s);
}

}  // namespace quire::attention
