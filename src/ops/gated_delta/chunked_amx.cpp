// The chunked form on AMX tiles: every product takes bf16 factors and adds in float32; decays, the triangular
// solve and the carried state are float32. A product is a grid of 32 x 32 blocks, four accumulator tiles
// each. Second factors lie as pairs of rows (k, k + 1) interleaved, as the tile instruction wants them:
//     keys_pairs_ [Dk/2][64]     for K K^T and Q K^T          state_pairs_ [Dk/2][Dv]   for K S and Q S
//     new_pairs_  [32][Dv]       for P R                      left_pairs_  [32][Dv]     for K^T (e^(c_C - c)
//     R)
// S is kept as [Dk, Dv] while a segment lasts, so that no product of a value head needs anything transposed;
// the transposed keys are shared by the value heads of a key head.
// clang-format off
#include "ops/simd/vec_avx512.h"
#include "ops/simd/math.h"
// clang-format on
#include "ops/gated_delta/chunk.h"

namespace quire::gdn {
namespace {

using V = simd::Vec512;

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes_per_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// A matrix whose rows are `stride` bytes apart.
struct Rows {
  const void* data;
  int64_t stride;
  const std::byte* at(int64_t row, int64_t byte) const {
    return static_cast<const std::byte*>(data) + row * stride + byte;
  }
};

// GCC's tile loads do not say that they read memory: keep stores on their side.
inline void memory_barrier() {
  asm volatile("" ::: "memory");
}

// C (+)= A B for one 32 x 32 block at (row, column); `steps` of 32 along the inner dimension.
template <bool Add>
inline void multiply_tiles(Rows A, Rows B, float* C, int64_t c_columns, int64_t row, int64_t column,
                           int64_t steps) {
  const int64_t c_stride = c_columns * static_cast<int64_t>(sizeof(float));
  float *c0 = C + row * c_columns + column, *c1 = c0 + 16 * c_columns;
  if (Add) {
    _tile_loadd(0, c0, c_stride);
    _tile_loadd(1, c0 + 16, c_stride);
    _tile_loadd(2, c1, c_stride);
    _tile_loadd(3, c1 + 16, c_stride);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t k = 0; k < steps; ++k) {
    _tile_loadd(4, A.at(row, 64 * k), A.stride);
    _tile_loadd(6, B.at(16 * k, 4 * column), B.stride);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, B.at(16 * k, 4 * column + 64), B.stride);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, A.at(row + 16, 64 * k), A.stride);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, c0, c_stride);
  _tile_stored(1, c0 + 16, c_stride);
  _tile_stored(2, c1, c_stride);
  _tile_stored(3, c1 + 16, c_stride);
}

// Two rows of 16 to bf16, interleaved: a0 b0 a1 b1 ...
inline __m512i interleave(V a, V b) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7,
                                         22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
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
    take(R_, kC * Dv_);
    take(QS_, kC * Dv_);
    take(O_, kC * Dv_);
    take(new_pairs_, kC / 2 * Dv_);
    take(left_pairs_, kC / 2 * Dv_);
    take(state_pairs_, Dk_ / 2 * Dv_);
    take(states_, w.heads * Dk_ * Dv_);
    bytes_ = at - scratch;
  }
  int64_t bytes() const { return bytes_; }
  float* state(int64_t m) { return states_ + m * Dk_ * Dv_; }

  void load_keys(int64_t row, int n, int64_t hk) {
    copy_rows(static_cast<const uint16_t*>(w_.k) + row * w_.k_stride + hk * Dk_, w_.k_stride, n, keys_);
    copy_rows(static_cast<const uint16_t*>(w_.q) + row * w_.q_stride + hk * Dk_, w_.q_stride, n, queries_);
    // Pairs of key elements, transposed as 32-bit units; the two halves are the rows of K^T.
    transpose_matrix<V>(reinterpret_cast<const float*>(keys_), kC, Dk_ / 2, Dk_ / 2,
                        reinterpret_cast<float*>(keys_pairs_), kC);
    for (int64_t d = 0; d < Dk_ / 2; ++d) {
      for (int j = 0; j < kC; j += 16) {
        const __m512i pair = _mm512_load_si512(keys_pairs_ + d * kC + j);
        _mm256_store_si256(reinterpret_cast<__m256i*>(keys_t_ + 2 * d * kC + j), _mm512_cvtepi32_epi16(pair));
        _mm256_store_si256(reinterpret_cast<__m256i*>(keys_t_ + (2 * d + 1) * kC + j),
                           _mm512_cvtepi32_epi16(_mm512_srli_epi32(pair, 16)));
      }
    }
    memory_barrier();
    for (int64_t i = 0; i < kC; i += 32) {
      for (int64_t j = 0; j <= i; j += 32) {
        multiply_tiles<false>(Rows{keys_, 2 * Dk_}, keys_pairs(), kk_, kC, i, j, Dk_ / 32);
        multiply_tiles<false>(Rows{queries_, 2 * Dk_}, keys_pairs(), qk_, kC, i, j, Dk_ / 32);
      }
    }
    memory_barrier();
  }

  void head(int64_t row, int n, int64_t hv, int64_t m, const Decays& d) {
    const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(Dk_));
    float* S = state(m);
    lower_triangles<V>(d, kk_, qk_, scale, M_, P_);
    narrow_P();
    narrow_and_decay_state(S, d.whole);
    memory_barrier();
    for (int64_t j = 0; j < Dv_; j += 32) {
      for (int64_t i = 0; i < kC; i += 32) {
        multiply_tiles<false>(Rows{keys_, 2 * Dk_}, Rows{state_pairs_, 4 * Dv_}, R_, Dv_, i, j, Dk_ / 32);
        multiply_tiles<false>(Rows{queries_, 2 * Dk_}, Rows{state_pairs_, 4 * Dv_}, QS_, Dv_, i, j, Dk_ / 32);
      }
    }
    memory_barrier();
    right_hand_sides(row, n, hv, d);
    solve<V>(M_, R_, Dv_);
    narrow_new_values(d);
    memory_barrier();
    for (int64_t j = 0; j < Dv_; j += 32) {
      for (int64_t i = 0; i < kC; i += 32)  // tokens after the block's last have P = 0
        multiply_tiles<false>(Rows{P_narrow_, 2 * kC}, Rows{new_pairs_, 4 * Dv_}, O_, Dv_, i, j, i / 32 + 1);
      for (int64_t i = 0; i < Dk_; i += 32)
        multiply_tiles<true>(Rows{keys_t_, 2 * kC}, Rows{left_pairs_, 4 * Dv_}, S, Dv_, i, j, kC / 32);
    }
    memory_barrier();
    write_out(row, n, hv, scale, d);
  }

 private:
  Rows keys_pairs() const { return {keys_pairs_, 4 * kC}; }

  // Rows of Dk bf16, zeros after the n-th.
  void copy_rows(const uint16_t* from, int64_t stride, int n, uint16_t* to) {
    for (int i = 0; i < kC; ++i)
      for (int64_t d = 0; d < Dk_; d += 32)
        _mm512_store_si512(to + i * Dk_ + d,
                           i < n ? _mm512_loadu_si512(from + i * stride + d) : _mm512_setzero_si512());
  }

  void narrow_P() {
    for (int i = 0; i < kC; ++i)
      for (int j = 0; j < (i / 32 + 1) * 32; j += 32) {
        const float* p = P_ + i * kC + j;
        _mm512_store_si512(P_narrow_ + i * kC + j, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(
                                                       _mm512_load_ps(p + 16), _mm512_load_ps(p))));
      }
  }

  void narrow_and_decay_state(float* S, float whole) {
    const V decay = V::set1(whole);
    for (int64_t i = 0; i < Dk_; i += 2) {
      for (int64_t j = 0; j < Dv_; j += 16) {
        const V a = V::load(S + i * Dv_ + j), b = V::load(S + (i + 1) * Dv_ + j);
        _mm512_store_si512(state_pairs_ + i / 2 * Dv_ + j, interleave(a, b));
        (a * decay).store(S + i * Dv_ + j);
        (b * decay).store(S + (i + 1) * Dv_ + j);
      }
    }
  }

  // Z = beta (V - e^c K S), in place of K S.
  void right_hand_sides(int64_t row, int n, int64_t hv, const Decays& d) {
    const uint16_t* v = static_cast<const uint16_t*>(w_.v) + row * w_.v_stride + hv * Dv_;
    for (int i = 0; i < kC; ++i) {
      const V entry = V::set1(d.entry[i]), beta = V::set1(d.beta[i]);
      for (int64_t j = 0; j < Dv_; j += 16) {
        float* r = R_ + i * Dv_ + j;
        const V value = i < n ? V::load(v + i * w_.v_stride + j) : V::zero();
        (beta * fnma(entry, V::load(r), value)).store(r);
      }
    }
  }

  void narrow_new_values(const Decays& d) {
    for (int64_t i = 0; i < kC; i += 2) {
      const V exit_a = V::set1(d.exit[i]), exit_b = V::set1(d.exit[i + 1]);
      for (int64_t j = 0; j < Dv_; j += 16) {
        const V a = V::load(R_ + i * Dv_ + j), b = V::load(R_ + (i + 1) * Dv_ + j);
        _mm512_store_si512(new_pairs_ + i / 2 * Dv_ + j, interleave(a, b));
        _mm512_store_si512(left_pairs_ + i / 2 * Dv_ + j, interleave(a * exit_a, b * exit_b));
      }
    }
  }

  void write_out(int64_t row, int n, int64_t hv, float scale, const Decays& d) {
    uint16_t* out = static_cast<uint16_t*>(w_.out) + row * w_.out_stride + hv * Dv_;
    for (int i = 0; i < n; ++i) {
      const V entry = V::set1(scale * d.entry[i]);
      for (int64_t j = 0; j < Dv_; j += 32) {
        const V a = fma(entry, V::load(QS_ + i * Dv_ + j), V::load(O_ + i * Dv_ + j));
        const V b = fma(entry, V::load(QS_ + i * Dv_ + j + 16), V::load(O_ + i * Dv_ + j + 16));
        _mm512_storeu_si512(out + i * w_.out_stride + j,
                            reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b.v, a.v)));
      }
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
  const TileConfig config;
  _tile_loadconfig(&config);
  ChunkedAmx form(w, scratch);
  for (int64_t unit = begin; unit < end; ++unit) chunked_unit<V>(w, form, unit);
  _tile_release();
}

}  // namespace quire::gdn
