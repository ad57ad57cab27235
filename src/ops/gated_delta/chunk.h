// What all chunked kernels share, written once for both vector widths. Include after ops/simd/vec_*.h and
// ops/simd/math.h.
//
// A chunk of C = 64 tokens, one value head, entering state S [Dk, Dv] (cumulative log-decay c_i = g_1 + ... +
// g_i):
//     M_ij = -beta_i (k_i k_j) e^(c_i - c_j)  for j < i       P_ij = Dk^(-1/2) (q_i k_j) e^(c_i - c_j)  for j
//     <= i Z = beta (V - e^c K S);   R = Z + M R  (row by row);    O = Dk^(-1/2) e^c Q S + P R S <- e^(c_C) S
//     + K^T (e^(c_C - c) R)
// so the system is solved once, for Dv right-hand sides, instead of inverting I - M and multiplying twice.
#pragma once

#include "ops/gated_delta/kernels.h"
#include "ops/op.h"

namespace quire::gdn {
namespace {

constexpr int kC = kChunkTokens;
constexpr int kSolve = 16;  // rows solved at once, in registers

// Decays and betas of one chunk and value head. The cumulative decay is kept in two floats: `coarse` on a
// grid of 1/64, whose differences are exact, and the rest, so that e^(c_i - c_j) is good to float32 although
// c may be in the tens of thousands. Rows beyond the chunk's tokens repeat the last decay and have beta 0.
struct Decays {
  alignas(64) float coarse[kC], rest[kC];
  alignas(64) float entry[kC];  // e^(c_i): what is left of the entering state
  alignas(64) float exit[kC];   // e^(c_C - c_i): what is left of row i at the end
  alignas(64) float beta[kC];
  float whole;  // e^(c_C)
};

template <class V>
void load_decays(const DeltaWork& w, int64_t row, int n, int64_t hv, Decays& d) {
  double c = 0.0;
  for (int i = 0; i < kC; ++i) {
    if (i < n) {
      // Below -1000 nothing is left in any case; the bound keeps `coarse` exact.
      const float g = w.g[(row + i) * w.g_stride + hv];
      c += static_cast<double>(g < -1000.0f ? -1000.0f : g);
    }
    d.coarse[i] = static_cast<float>(static_cast<int64_t>(c * 64.0)) / 64.0f;
    d.rest[i] = static_cast<float>(c - static_cast<double>(d.coarse[i]));
    d.beta[i] = i < n ? w.beta[(row + i) * w.beta_stride + hv] : 0.0f;
  }
  const V coarse = V::set1(d.coarse[kC - 1]), rest = V::set1(d.rest[kC - 1]);
  for (int i = 0; i < kC; i += V::kWidth) {
    const V ci = V::load(d.coarse + i), ri = V::load(d.rest + i);
    simd::exp(ci + ri).store(d.entry + i);
    simd::exp((coarse - ci) + (rest - ri)).store(d.exit + i);
  }
  d.whole = d.entry[kC - 1];
}

// A float32 matrix in vectors: vector j of row i stands at p + i * row + j * vec. Row-major is {p, columns,
// width}; panels, one vector wide, keep what a tile holds contiguous.
struct Matrix {
  float* p;
  int64_t row, vec;
  float* at(int64_t i, int64_t j) const { return p + i * row + j * vec; }
};

// M and P from K K^T and Q K^T, all [64, 64]. Each row is written up to the next multiple of 32 columns,
// zeros above the diagonal; beyond that nobody reads.
template <class V>
void lower_triangles(const Decays& d, Matrix kk, Matrix qk, float scale, float* M, float* P) {
  for (int i = 0; i < kC; ++i) {
    const V coarse = V::set1(d.coarse[i]), rest = V::set1(d.rest[i]), beta = V::set1(-d.beta[i]);
    const V at = V::set1(static_cast<float>(i)), factor = V::set1(scale);
    for (int j = 0; j < (i / 32 + 1) * 32; j += V::kWidth) {
      if (j > i) {
        V::zero().store(M + i * kC + j);
        V::zero().store(P + i * kC + j);
        continue;
      }
      // Above the diagonal the exponent is positive: cut before it can overflow.
      const V e = simd::exp(min(V::zero(), (coarse - V::load(d.coarse + j)) + (rest - V::load(d.rest + j))));
      const V column = V::count_from(static_cast<float>(j));
      select_greater(at, column, beta * V::load(kk.at(i, j / V::kWidth)) * e, V::zero()).store(M + i * kC + j);
      select_greater(column, at, V::zero(), factor * V::load(qk.at(i, j / V::kWidth)) * e).store(P + i * kC + j);
    }
  }
}

// C [MR, NV vectors] (+)= A [MR, K] B [K, NV vectors], rows of A broadcast.
template <class V, int MR, int NV, bool Add>
inline void multiply_block(int64_t K, const float* A, int64_t lda, Matrix B, Matrix C) {
  V acc[MR][NV];
#pragma GCC unroll 8
  for (int i = 0; i < MR; ++i)
#pragma GCC unroll 2
    for (int j = 0; j < NV; ++j) acc[i][j] = Add ? V::load(C.at(i, j)) : V::zero();
  for (int64_t k = 0; k < K; ++k) {
    V b[NV];
#pragma GCC unroll 2
    for (int j = 0; j < NV; ++j) b[j] = V::load(B.at(k, j));
#pragma GCC unroll 8
    for (int i = 0; i < MR; ++i) {
      const V a = V::set1(A[i * lda + k]);
#pragma GCC unroll 2
      for (int j = 0; j < NV; ++j) acc[i][j] = fma(a, b[j], acc[i][j]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < MR; ++i)
#pragma GCC unroll 2
    for (int j = 0; j < NV; ++j) acc[i][j].store(C.at(i, j));
}

// C [m, n vectors] (+)= A [m, K] B [K, n vectors]; m a multiple of 8.
template <class V, bool Add>
void multiply(int64_t m, int64_t n, int64_t K, const float* A, int64_t lda, Matrix B, Matrix C) {
  constexpr int kRows = V::kWidth == 16 ? 8 : 4;  // 16 accumulators of 32 registers, 8 of 16
  const auto from = [](Matrix x, int64_t i, int64_t j) { return Matrix{x.at(i, j), x.row, x.vec}; };
  int64_t j = 0;
  for (; j + 2 <= n; j += 2)
    for (int64_t i = 0; i < m; i += kRows)
      multiply_block<V, kRows, 2, Add>(K, A + i * lda, lda, from(B, 0, j), from(C, i, j));
  if (j < n)
    for (int64_t i = 0; i < m; i += kRows)
      multiply_block<V, kRows, 1, Add>(K, A + i * lda, lda, from(B, 0, j), from(C, i, j));
}

// R <- (I - M)^(-1) R in float32, R [64, n vectors], with M's diagonal blocks solved in registers. Keys that
// are nearly parallel make the inverse large; float32 keeps that harmless.
template <class V>
void solve(const float* M, Matrix R, int64_t n) {
  for (int b = 0; b < kC; b += kSolve) {
    if (b > 0) multiply<V, true>(kSolve, n, b, M + b * kC, kC, R, Matrix{R.at(b, 0), R.row, R.vec});
    for (int64_t j = 0; j < n; ++j) {
      V r[kSolve];
#pragma GCC unroll 16
      for (int i = 0; i < kSolve; ++i) r[i] = V::load(R.at(b + i, j));
#pragma GCC unroll 16
      for (int m = 0; m < kSolve; ++m)
#pragma GCC unroll 16
        for (int i = m + 1; i < kSolve; ++i) r[i] = fma(V::set1(M[(b + i) * kC + b + m]), r[m], r[i]);
#pragma GCC unroll 16
      for (int i = 1; i < kSolve; ++i) r[i].store(R.at(b + i, j));
    }
  }
}

// to [columns, rows] = from [rows, columns] transposed; both sizes multiples of the vector width.
template <class V>
void transpose_matrix(const float* from, int64_t rows, int64_t columns, int64_t from_stride, float* to,
                      int64_t to_stride) {
  for (int64_t i = 0; i < rows; i += V::kWidth) {
    for (int64_t j = 0; j < columns; j += V::kWidth) {
      V r[V::kWidth];
      for (int x = 0; x < V::kWidth; ++x) r[x] = V::load(from + (i + x) * from_stride + j);
      transpose(r);
      for (int x = 0; x < V::kWidth; ++x) r[x].store(to + (j + x) * to_stride + i);
    }
  }
}

// Walks the chunks of one unit. Form provides: load_state(m, stored) (null: zeros), store_state(m, stored),
// load_keys(row, n, hk) and head(row, n, hv, m, decays).
template <class V, class Form>
void chunked_unit(const ChunkedWork& w, Form& form, int64_t unit) {
  const DeltaWork& d = w.delta;
  const int64_t groups = d.Hv / d.Hk / w.heads;
  const Segment& s = d.segments[unit / (d.Hk * groups)];
  if (s.count == 0) return;
  const int64_t hk = unit / groups % d.Hk, first = unit % groups * w.heads;
  const auto stored = [&](int64_t m) {
    return d.state + s.state_slot * d.state_slot_stride + w.value_head(hk, first + m) * d.Dv * d.Dk;
  };
  for (int64_t m = 0; m < w.heads; ++m) form.load_state(m, s.position > 0 ? stored(m) : nullptr);
  for (int32_t t = 0; t < s.count; t += kC) {
    const int n = s.count - t < kC ? s.count - t : kC;
    form.load_keys(s.row + t, n, hk);
    for (int64_t m = 0; m < w.heads; ++m) {
      const int64_t hv = w.value_head(hk, first + m);
      Decays decays;
      load_decays<V>(d, s.row + t, n, hv, decays);
      form.head(s.row + t, n, hv, m, decays);
    }
  }
  for (int64_t m = 0; m < w.heads; ++m) form.store_state(m, stored(m));
}

}  // namespace
}  // namespace quire::gdn
