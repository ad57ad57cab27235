// paged_attention on AMX bf16 tiles: d a multiple of 32.
//
// A tile of up to 32 rows (two A tiles: tokens x query heads of one KV head) meets 32 keys (two B tiles) at a
// time. S = Q K^T takes K straight from the cache: 32 elements of 16 tokens are 1 KiB in B layout. P V
// contracts over 32 tokens, that is two blocks, which lie anywhere: a B tile has one stride, so the group's
// value blocks are first copied side by side (one copy serves all rows of the task). Contracting over one
// block at a time needs no copy, but costs a tile product of full time for half the work.
#include <immintrin.h>

#include "ops/attention/vector_avx512.h"
#include "ops/simd/tiles_amx.h"

namespace quire::attention {
namespace {

// Tiles: 0 1 / 2 3 accumulate (upper / lower 16 rows) x (left / right 16 columns); 4, 5 are the A tiles of
// the upper and lower rows, 6, 7 the B tiles of the left and right columns.
void configure_tiles(int64_t upper, int64_t lower) {
  simd::TileConfig c;
  for (int i = 0; i < 8; ++i) c.set(i, i >= 6 ? 16 : (i == 0 || i == 1 || i == 4) ? upper : lower, 64);
  c.load();
}

void copy_bytes(void* to, const void* from, int64_t bytes) {
  auto* d = static_cast<__m512i*>(to);
  auto* s = static_cast<const char*>(from);
  for (int64_t i = 0; i < bytes / 64; ++i) _mm512_store_si512(d + i, _mm512_loadu_si512(s + 64 * i));
}

// GCC 12's tile intrinsics do not say that they read and write memory.
void compiler_barrier() {
  asm volatile("" ::: "memory");
}

struct Amx {
  static constexpr int64_t kTileRows = kMaxTileRows;

  const RowTask& t;
  const TaskScratch& s;
  bf16* queries;
  int64_t upper = 0, lower = -1;  // rows of the present tile configuration

  Amx(const RowTask& task, const TaskScratch& scratch)
      : t(task), s(scratch), queries(reinterpret_cast<bf16*>(scratch.queries)) {}
  void end() { _tile_release(); }

  void configure(int64_t rows) {
    const int64_t u = smaller(rows, 16), l = rows - u;
    if (u == upper && l == lower) return;
    configure_tiles(u, l);
    upper = u;
    lower = l;
  }

  void load_query(int64_t r, const bf16* from) { copy_bytes(queries + r * t.d, from, 2 * t.d); }

  // Copies the value blocks of keys [key, key + count): [16 pairs][d][2] per 32 keys. What the task's last
  // row does not see becomes zero, because 0 times a NaN in the cache would not be.
  void stage_values(int64_t key, int64_t count) {
    for (int64_t k = 0; k < count; k += kBlockTokens) {
      const bf16* from = t.v + t.blocks[(key + k) / kBlockTokens] * t.v_block;
      bf16* to = s.values + k * t.d;
      if (count - k >= kBlockTokens) {
        copy_bytes(to, from, kBlockTokens * t.d * 2);
      } else {
        const int64_t left = count - k;
        copy_bytes(to, from, left / 2 * t.d * 4);
        for (int64_t pair = left / 2; pair < kBlockTokens / 2; ++pair) {
          // The low half of a 32-bit element is the pair's first token.
          const __mmask32 lanes = left % 2 != 0 && pair == left / 2 ? 0x55555555u : 0u;
          for (int64_t c = 0; c < t.d; c += 16) {
            const int64_t at = pair * t.d * 2 + c * 2;
            _mm512_store_si512(to + at, _mm512_maskz_loadu_epi16(lanes, from + at));
          }
        }
      }
    }
    const int64_t copied = (count + kBlockTokens - 1) / kBlockTokens;
    if (copied % 2 != 0) {
      auto* to = reinterpret_cast<__m512i*>(s.values + copied * kBlockTokens * t.d);
      for (int64_t i = 0; i < t.d / 2; ++i) _mm512_store_si512(to + i, _mm512_setzero_si512());
    }
  }

  void scores(int64_t row, int64_t count, int64_t key, int64_t seen) {
    configure(count);
    if (lower > 0)
      scores_of<true>(queries + row * t.d, key, seen);
    else
      scores_of<false>(queries + row * t.d, key, seen);
  }

  // 32 keys at a time. Keys and values pass through the first-level cache once for a tile of rows; loads that
  // say so (tileloaddt1) leave the queries, scores and probabilities there.
  template <bool kTwo>
  void scores_of(const bf16* q, int64_t key, int64_t seen) {
    compiler_barrier();
    const int64_t blocks = (seen + kBlockTokens - 1) / kBlockTokens;
    const int32_t* table = t.blocks + key / kBlockTokens;
    for (int64_t b = 0; b < blocks; b += 2) {
      const bool both = b + 1 < blocks;  // otherwise the left block is taken twice: that does no harm
      const bf16* left = t.k + table[b] * t.k_block;
      const bf16* right = t.k + table[both ? b + 1 : b] * t.k_block;
      _tile_zero(0);
      _tile_zero(1);
      if (kTwo) _tile_zero(2);
      if (kTwo) _tile_zero(3);
      for (int64_t c = 0; c < t.d; c += 32) {
        _tile_stream_loadd(6, left + c * kBlockTokens, 64);
        _tile_loadd(4, q + c, t.d * 2);
        _tile_dpbf16ps(0, 4, 6);
        _tile_stream_loadd(7, right + c * kBlockTokens, 64);
        _tile_dpbf16ps(1, 4, 7);
        if (kTwo) {
          _tile_loadd(5, q + 16 * t.d + c, t.d * 2);
          _tile_dpbf16ps(2, 5, 6);
          _tile_dpbf16ps(3, 5, 7);
        }
      }
      float* const to = s.scores + b * kBlockTokens;
      constexpr int64_t kPitch = kGroupKeys * 4;
      _tile_stored(0, to, kPitch);
      if (kTwo) _tile_stored(2, to + 16 * kGroupKeys, kPitch);
      if (!both) break;
      _tile_stored(1, to + kBlockTokens, kPitch);
      if (kTwo) _tile_stored(3, to + 16 * kGroupKeys + kBlockTokens, kPitch);
    }
    compiler_barrier();
  }

  void accumulate(int64_t row, int64_t, int64_t from, int64_t seen, bool first) {
    const bf16* values = s.values + from * t.d;
    if (lower > 0)
      accumulate_of<true>(s.sums + row * s.pitch, values, seen, first);
    else
      accumulate_of<false>(s.sums + row * s.pitch, values, seen, first);
  }

  template <bool kTwo>
  void accumulate_of(float* sums, const bf16* values, int64_t seen, bool first) {
    compiler_barrier();
    const int64_t pitch = s.pitch * 4, steps = (seen + 31) / 32;
    for (int64_t c = 0; c < t.d; c += 32) {
      float* lower_sums = sums + 16 * s.pitch + c;
      if (first) {
        _tile_zero(0);
        _tile_zero(1);
        if (kTwo) _tile_zero(2);
        if (kTwo) _tile_zero(3);
      } else {
        _tile_loadd(0, sums + c, pitch);
        _tile_loadd(1, sums + c + 16, pitch);
        if (kTwo) _tile_loadd(2, lower_sums, pitch);
        if (kTwo) _tile_loadd(3, lower_sums + 16, pitch);
      }
      for (int64_t i = 0; i < steps; ++i) {
        const auto* p = reinterpret_cast<const bf16*>(s.scores) + 32 * i;
        const bf16* v = values + 32 * i * t.d + c * 2;
        constexpr int64_t kPitch = kGroupKeys * 4;
        _tile_stream_loadd(6, v, t.d * 4);
        _tile_loadd(4, p, kPitch);
        _tile_dpbf16ps(0, 4, 6);
        _tile_stream_loadd(7, v + 32, t.d * 4);
        _tile_dpbf16ps(1, 4, 7);
        if (kTwo) {
          _tile_loadd(5, p + 16 * kGroupKeys * 2, kPitch);
          _tile_dpbf16ps(2, 5, 6);
          _tile_dpbf16ps(3, 5, 7);
        }
      }
      _tile_stored(0, sums + c, pitch);
      _tile_stored(1, sums + c + 16, pitch);
      if (kTwo) _tile_stored(2, lower_sums, pitch);
      if (kTwo) _tile_stored(3, lower_sums + 16, pitch);
    }
    compiler_barrier();
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

void attend_amx(const RowTask& t, const TaskScratch& s) {
  walk<Amx>(t, s);
}

}  // namespace quire::attention
