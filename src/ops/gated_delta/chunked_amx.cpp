// The chunked form on AMX tiles: every product takes bf16 factors and adds in float32; decays, the triangular
// solve and the carried state are float32. A product is a grid of 32 x 32 blocks, four accumulator tiles
// each. Everything that a tile is loaded from lies tile by tile, 1 KiB each, whatever the matrix: with rows
// of 256 or 512 bytes a tile's 16 rows share few sets of the L1 cache, which cost 7% of the whole. At 18% of
// one core's AMX peak (docs/kernels-cpu-delta.md says where the rest goes).
//   first factors    [rows / 16][inner / 32] tiles of 16 rows x 32 bf16
//   second factors   [columns / 16][inner / 32] tiles of 16 interleaved pairs of rows (k, k + 1) x 16 columns
//   float32 results  [columns / 16] panels of [rows] x 16 columns
// S is kept as [Dk, Dv] while a segment lasts, so that no product of a value head needs anything transposed;
// the transposed keys are shared by the value heads of a key head.
// clang-format off
#include "ops/simd/vec_avx512.h"
#include "ops/simd/math.h"
// clang-format on
#include "ops/gated_delta/chunk.h"
#include "ops/simd/tiles_amx.h"

namespace quire::gdn {
namespace {

using V = simd::Vec512;

constexpr int64_t kTile = 1024;  // bytes
constexpr int kColumns = 32;     // value columns taken through a chunk at once

// GCC's tile loads do not say that they read memory: keep stores on their side.
inline void memory_barrier() {
  asm volatile("" ::: "memory");
}

// C (+)= A B for one 32 x 32 block: row tiles i, i + 1 of A and column tiles j, j + 1 of B, which have
// a_tiles and b_tiles tiles along the inner dimension, of which the first `steps` are used. C's panels are
// c_rows long.
template <bool Add>
inline void multiply_tiles(const void* A, int64_t a_tiles, const void* B, int64_t b_tiles, float* C, int64_t c_rows,
                           int64_t i, int64_t j, int64_t steps) {
  const std::byte *a0 = static_cast<const std::byte*>(A) + i * a_tiles * kTile, *a1 = a0 + a_tiles * kTile;
  const std::byte *b0 = static_cast<const std::byte*>(B) + j * b_tiles * kTile, *b1 = b0 + b_tiles * kTile;
  float *c0 = C + (j * c_rows + i * 16) * 16, *c1 = c0 + c_rows * 16;
  if (Add) {
    _tile_loadd(0, c0, 64);
    _tile_loadd(1, c1, 64);
    _tile_loadd(2, c0 + 256, 64);
    _tile_loadd(3, c1 + 256, 64);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t k = 0; k < steps * kTile; k += kTile) {
    _tile_loadd(4, a0 + k, 64);
    _tile_loadd(6, b0 + k, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b1 + k, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, a1 + k, 64);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, c0, 64);
  _tile_stored(1, c1, 64);
  _tile_stored(2, c0 + 256, 64);
  _tile_stored(3, c1 + 256, 64);
}

// Two rows of 16 to bf16, interleaved: a0 b0 a1 b1 ...
inline __m512i interleave(V a, V b) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21,
                                         5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b.v, a.v)));
}

class ChunkedAmx {
 public:
  ChunkedAmx(const ChunkedWork& w, std::byte* scratch) : w_(w.delta), Dk_(w.delta.Dk), Dv_(w.delta.Dv) {
    std::byte* at = scratch;
    const auto take = [&]<class T>(T*& p, int64_t n) {
      p = reinterpret_cast<T*>(at);
      at += n * static_cast<int64_t>(sizeof(T));
    };
    take(keys_, kC * Dk_);
    take(queries_, kC * Dk_);
    take(keys_t_, Dk_ * kC);
    take(keys_pairs_, Dk_ / 2 * kC);
    take(kk_, kC * kC);
    take(qk_, kC * kC);
    take(M_, kC * kC);
    take(P_, kC * kC);
    take(P_narrow_, kC * kC);
    take(R_, kC * kColumns);
    take(QS_, kC * kColumns);
    take(O_, kC * kColumns);
    take(new_pairs_, kC / 2 * kColumns);
    take(left_pairs_, kC / 2 * kColumns);
    take(state_pairs_, Dk_ / 2 * kColumns);
    take(states_, w.heads * Dk_ * Dv_);
    bytes_ = at - scratch;
  }
  int64_t bytes() const { return bytes_; }

  void load_state(int64_t m, const float* stored) {
    float* S = states_ + m * Dk_ * Dv_;
    if (stored == nullptr) {
      for (int64_t i = 0; i < Dk_ * Dv_; i += 16) V::zero().store(S + i);
      return;
    }
    for (int64_t j = 0; j < Dv_; j += 16) transpose_matrix<V>(stored + j * Dk_, 16, Dk_, Dk_, S + j * Dk_, 16);
  }
  void store_state(int64_t m, float* stored) {
    const float* S = states_ + m * Dk_ * Dv_;
    for (int64_t j = 0; j < Dv_; j += 16) transpose_matrix<V>(S + j * Dk_, Dk_, 16, 16, stored + j * Dk_, Dk_);
  }

  void load_keys(int64_t row, int n, int64_t hk) {
    copy_rows(static_cast<const uint16_t*>(w_.k) + row * w_.k_stride + hk * Dk_, w_.k_stride, n, keys_);
    copy_rows(static_cast<const uint16_t*>(w_.q) + row * w_.q_stride + hk * Dk_, w_.q_stride, n, queries_);
    transpose_keys();
    memory_barrier();
    const int64_t steps = Dk_ / 32;
    for (int64_t i = 0; i < kC / 16; i += 2) {
      for (int64_t j = 0; j <= i; j += 2) {
        multiply_tiles<false>(keys_, steps, keys_pairs_, steps, kk_, kC, i, j, steps);
        multiply_tiles<false>(queries_, steps, keys_pairs_, steps, qk_, kC, i, j, steps);
      }
    }
    memory_barrier();
  }

  // Value columns do not depend on each other: 32 of them go through all steps before the next 32, so that
  // what lies between two products takes 40 KB of scratch instead of 160. As fast as all columns per step.
  void head(int64_t row, int n, int64_t hv, int64_t m, const Decays& d) {
    const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(Dk_));
    lower_triangles<V>(d, panels(kk_), panels(qk_), scale, M_, P_);
    narrow_P();
    for (int64_t j = 0; j < Dv_; j += kColumns) {
      float* S = states_ + (m * Dv_ + j) * Dk_;
      narrow_and_decay_state(S, d.whole);
      products_with_state();
      right_hand_sides(row, n, hv, j, d);
      solve<V>(M_, panels(R_), kColumns / 16);
      narrow_new_values(d);
      products_with_new_values(S);
      write_out(row, n, hv, j, scale, d);
    }
  }

 private:
  static Matrix panels(float* p) { return {p, 16, kC * 16}; }  // [64, ..]

  // Rows of Dk bf16 to tiles, zeros after the n-th.
  void copy_rows(const uint16_t* from, int64_t stride, int n, uint16_t* to) {
    for (int i = 0; i < kC; ++i) {
      uint16_t* tile = to + i / 16 * 16 * Dk_ + i % 16 * 32;
      for (int64_t d = 0; d < Dk_; d += 32, tile += 512)
        _mm512_store_si512(tile, i < n ? _mm512_loadu_si512(from + i * stride + d) : _mm512_setzero_si512());
    }
  }

  // A tile of keys, transposed as pairs of elements, is a tile of pairs for K K^T; the two halves of its rows
  // are rows of K^T.
  void transpose_keys() {
    const int64_t steps = Dk_ / 32;
    for (int64_t t = 0; t < kC / 16; ++t) {
      for (int64_t k = 0; k < steps; ++k) {
        const float* keys = reinterpret_cast<const float*>(keys_) + (t * steps + k) * 256;
        V r[16];
        for (int i = 0; i < 16; ++i) r[i] = V::load(keys + i * 16);
        transpose(r);
        float* pairs = reinterpret_cast<float*>(keys_pairs_) + (t * steps + k) * 256;
        for (int i = 0; i < 16; ++i) {
          r[i].store(pairs + i * 16);
          // Rows 2 i, 2 i + 1 of 32; the upper 16 of them are the next tile of rows.
          uint16_t* row = keys_t_ + ((2 * k + i / 8) * 2 + t / 2) * 512 + 2 * i % 16 * 32 + t % 2 * 16;
          const __m512i pair = _mm512_castps_si512(r[i].v);
          _mm256_store_si256(reinterpret_cast<__m256i*>(row), _mm512_cvtepi32_epi16(pair));
          _mm256_store_si256(reinterpret_cast<__m256i*>(row + 32), _mm512_cvtepi32_epi16(_mm512_srli_epi32(pair, 16)));
        }
      }
    }
  }

  void narrow_P() {
    for (int i = 0; i < kC; ++i)
      for (int j = 0; j < (i / 32 + 1) * 32; j += 32) {
        const float* p = P_ + i * kC + j;
        _mm512_store_si512(P_narrow_ + (i / 16 * 2 + j / 32) * 512 + i % 16 * 32,
                           reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(_mm512_load_ps(p + 16), _mm512_load_ps(p))));
      }
  }

  // Panels of S and tiles of its pairs follow each other in the same order.
  void narrow_and_decay_state(float* S, float whole) {
    const V decay = V::set1(whole);
    for (int64_t i = 0; i < Dk_ * kColumns; i += 32) {
      const V a = V::load(S + i), b = V::load(S + i + 16);
      _mm512_store_si512(state_pairs_ + i / 2, interleave(a, b));
      (a * decay).store(S + i);
      (b * decay).store(S + i + 16);
    }
  }

  // K S and Q S.
  void products_with_state() {
    const int64_t steps = Dk_ / 32;
    memory_barrier();
    for (int64_t i = 0; i < kC / 16; i += 2) {
      multiply_tiles<false>(keys_, steps, state_pairs_, steps, R_, kC, i, 0, steps);
      multiply_tiles<false>(queries_, steps, state_pairs_, steps, QS_, kC, i, 0, steps);
    }
    memory_barrier();
  }

  // P R, and K^T (e^(c_C - c) R) added to the state.
  void products_with_new_values(float* S) {
    memory_barrier();
    for (int64_t i = 0; i < kC / 16; i += 2)  // tokens after the block's last have P = 0
      multiply_tiles<false>(P_narrow_, 2, new_pairs_, 2, O_, kC, i, 0, i / 2 + 1);
    for (int64_t i = 0; i < Dk_ / 16; i += 2) multiply_tiles<true>(keys_t_, 2, left_pairs_, 2, S, Dk_, i, 0, 2);
    memory_barrier();
  }

  // Z = beta (V - e^c K S), in place of K S.
  void right_hand_sides(int64_t row, int n, int64_t hv, int64_t column, const Decays& d) {
    const uint16_t* v = static_cast<const uint16_t*>(w_.v) + row * w_.v_stride + hv * Dv_ + column;
    float* r = R_;
    for (int i = 0; i < kC; ++i, r += 16) {
      const V entry = V::set1(d.entry[i]), beta = V::set1(d.beta[i]);
      const V low = i < n ? V::load(v + i * w_.v_stride) : V::zero();
      const V high = i < n ? V::load(v + i * w_.v_stride + 16) : V::zero();
      (beta * fnma(entry, V::load(r), low)).store(r);
      (beta * fnma(entry, V::load(r + 16 * kC), high)).store(r + 16 * kC);
    }
  }

  void narrow_new_values(const Decays& d) {
    for (int64_t at = 0; at < kColumns * kC; at += 32) {
      const int64_t i = at / 16 % kC;
      const V a = V::load(R_ + at), b = V::load(R_ + at + 16);
      _mm512_store_si512(new_pairs_ + at / 2, interleave(a, b));
      _mm512_store_si512(left_pairs_ + at / 2, interleave(a * V::set1(d.exit[i]), b * V::set1(d.exit[i + 1])));
    }
  }

  void write_out(int64_t row, int n, int64_t hv, int64_t column, float scale, const Decays& d) {
    uint16_t* out = static_cast<uint16_t*>(w_.out) + row * w_.out_stride + hv * Dv_ + column;
    const float *qs = QS_, *o = O_;
    for (int i = 0; i < n; ++i, qs += 16, o += 16) {
      const V entry = V::set1(scale * d.entry[i]);
      const V a = fma(entry, V::load(qs), V::load(o));
      const V b = fma(entry, V::load(qs + 16 * kC), V::load(o + 16 * kC));
      _mm512_storeu_si512(out + i * w_.out_stride, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b.v, a.v)));
    }
  }

  const DeltaWork& w_;
  int64_t Dk_, Dv_, bytes_;
  uint16_t *keys_, *queries_, *keys_t_, *P_narrow_;
  uint32_t *keys_pairs_, *new_pairs_, *left_pairs_, *state_pairs_;
  float *kk_, *qk_, *M_, *P_, *R_, *QS_, *O_, *states_;
};

}  // namespace

int64_t chunked_scratch_amx(int64_t Dk, int64_t Dv, int64_t heads) {
  ChunkedWork w{};
  w.delta.Dk = Dk;
  w.delta.Dv = Dv;
  w.heads = heads;
  return ChunkedAmx(w, nullptr).bytes();
}

void chunked_amx(const ChunkedWork& w, int64_t begin, int64_t end, std::byte* scratch) {
  simd::TileConfig config;
  for (int t = 0; t < 8; ++t) config.set(t, 16, 64);
  config.load();
  ChunkedAmx form(w, scratch);
  for (int64_t unit = begin; unit < end; ++unit) chunked_unit<V>(w, form, unit);
  _tile_release();
}

}  // namespace quire::gdn
