// The recurrent form, written once for both vector widths. Include after ops/simd/vec_*.h and
// ops/simd/math.h.
//
// S0 is only read, for S0 k and S0 q together; what was added since is that of pending tokens (gated_delta.h):
//     u_t = beta (v - e^(G_t) S0 k - sum over j < t of e^(G_t - G_j) (k_j k) u_j)
//     out = Dk^(-1/2) (e^(G_t) S0 q + sum over j <= t of e^(G_t - G_j) (k_j q) u_j)
// Tokens go in spans that end at multiples of kPendingTokens, after which the span is folded into S0. The
// factors of the u_j are computed once for a span and all value columns of the unit; columns then pass in
// tiles that stay in the L1 cache from reading to folding. Memory bound for one row: 4 Dv Dk bytes for 4 Dv
// Dk operations, and an eighth of both for pending tokens and the folds. Columns do not depend on each other; a
// column's sums run over Dk and over the span's tokens only, whatever tile or unit it stands in.
#pragma once

#include "ops/gated_delta/kernels.h"
#include "ops/op.h"

namespace quire::gdn {
namespace {

constexpr int kTileColumns = 16;
constexpr int64_t kLine = 16;        // floats of a cache line
constexpr int64_t kPrefetch = 2048;  // floats ahead: the hardware stops at every page, an eighth of which is a column

// Tokens [begin, end) of a segment, which no multiple of kPendingTokens divides; those from `first` on are its rows.
// Everything that the value columns share. Arrays are indexed by token - begin.
struct Span {
  int32_t begin, first, end;
  alignas(64) float k[kPendingTokens][kMaxHeadDim];
  alignas(64) float q[kPendingTokens][kMaxHeadDim];  // of rows; times Dk^(-1/2)
  // [row][j]: e^(G_t - G_j) times k_j k_t, and times k_j q_t
  float with_k[kPendingTokens][kPendingTokens], with_q[kPendingTokens][kPendingTokens];
  float left[kPendingTokens];  // e^(G_t): what is left of S0
  float beta[kPendingTokens];
  float fold[kPendingTokens], fold_left;  // the factors after the last token
  int tokens() const { return end - begin; }
};

// e^(G_t - G_j) for j = 0 ... t, where g holds the tokens' own decays, and e^(G_t). Sums run from t back, so
// that a long-gone token's decay, however large, costs the recent ones no precision.
template <class V>
void decays(const float* g, int t, float* factors, float& left) {
  alignas(64) float sum[kPendingTokens + 16] = {}, e[kPendingTokens + 16];
  float d = 0.0f;
  for (int j = t; j >= 0; --j) {
    sum[j] = d;
    d += g[j];
  }
  sum[kPendingTokens] = d;
  for (int j = 0; j < kPendingTokens + V::kWidth; j += V::kWidth) simd::exp(V::load(sum + j)).store(e + j);
  for (int j = 0; j <= t; ++j) factors[j] = e[j];
  left = e[kPendingTokens];
}

template <class V, class T>
void load_vector(const T* from, int64_t n, float scale, float* to) {
  for (int64_t d = 0; d < n; d += V::kWidth) (V::load(from + d) * V::set1(scale)).store(to + d);
}

// The products of row t's key and query with the keys of tokens 0 ... t, four tokens at a time; keys up to
// the next multiple of four are read.
template <class V>
void multiply_keys(const Span& m, int64_t Dk, int t, float* with_k, float* with_q) {
  for (int j = 0; j <= t; j += 4) {
    V a[4] = {V::zero(), V::zero(), V::zero(), V::zero()}, b[4] = {V::zero(), V::zero(), V::zero(), V::zero()};
    for (int64_t d = 0; d < Dk; d += V::kWidth) {
      const V k = V::load(m.k[t] + d), q = V::load(m.q[t] + d);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const V kj = V::load(m.k[j + i] + d);
        a[i] = fma(kj, k, a[i]);
        b[i] = fma(kj, q, b[i]);
      }
    }
    sum4(a[0], a[1], a[2], a[3], with_k + j);
    sum4(b[0], b[1], b[2], b[3], with_q + j);
  }
}

template <class V, class T>
void load_span(const DeltaWork& w, const Segment& s, int64_t hv, Span& m) {
  const int64_t hk = w.key_head(hv);
  const T* keys = static_cast<const T*>(w.pending_k) + s.state_slot * w.pending_k_slot_stride + hk * w.Dk;
  const float* decay = w.pending_g + s.state_slot * w.pending_g_slot_stride + hv;
  const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(w.Dk));
  float g[kPendingTokens], factors[kPendingTokens];
  const int n = m.tokens();
  for (int i = 0; i < n; ++i) {
    const int32_t t = m.begin + i;
    const int64_t row = s.row + (t - s.position), old = t - s.anchor;
    if (t < m.first) {
      load_vector<V>(keys + old * w.Hk * w.Dk, w.Dk, 1.0f, m.k[i]);
      g[i] = decay[old * w.Hv];
      continue;
    }
    load_vector<V>(static_cast<const T*>(w.k) + row * w.k_stride + hk * w.Dk, w.Dk, 1.0f, m.k[i]);
    load_vector<V>(static_cast<const T*>(w.q) + row * w.q_stride + hk * w.Dk, w.Dk, scale, m.q[i]);
    g[i] = w.g[row * w.g_stride + hv];
    m.beta[i] = w.beta[row * w.beta_stride + hv];
  }
  for (int i = n; i % 4 != 0; ++i)
    for (int64_t d = 0; d < w.Dk; d += V::kWidth) V::zero().store(m.k[i] + d);
  for (int i = m.first - m.begin; i < n; ++i) {
    multiply_keys<V>(m, w.Dk, i, m.with_k[i], m.with_q[i]);
    decays<V>(g, i, factors, m.left[i]);
    for (int j = 0; j <= i; ++j) {
      m.with_k[i][j] *= factors[j];
      m.with_q[i][j] *= factors[j];
    }
  }
  decays<V>(g, n - 1, m.fold, m.fold_left);
}

// S0 k and S0 q of N <= 4 columns.
template <class V, int N>
inline void read_columns(const float* k, const float* q, int64_t Dk, const float* S0, float* p, float* r) {
  V a[4] = {V::zero(), V::zero(), V::zero(), V::zero()}, b[4] = {V::zero(), V::zero(), V::zero(), V::zero()};
  for (int64_t d = 0; d < Dk; d += V::kWidth) {
    const V kd = V::load(k + d), qd = V::load(q + d);
    // Line after line, whatever the columns' order: prefetched column by column, memory gives half as much.
    for (int64_t i = 0; i < N * V::kWidth; i += kLine) V::prefetch(S0 + kPrefetch + d * N + i);
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) {
      const V s = V::load(S0 + j * Dk + d);
      a[j] = fma(s, kd, a[j]);
      b[j] = fma(s, qd, b[j]);
    }
  }
  float ps[4], rs[4];
  sum4(a[0], a[1], a[2], a[3], ps);
  sum4(b[0], b[1], b[2], b[3], rs);
  for (int j = 0; j < N; ++j) {
    p[j] = ps[j];
    r[j] = rs[j];
  }
}

// Value columns [column, column + count) of a head, count <= kTileColumns. S0 is null for zeros; u points at
// the span's first token among the pending ones, which are u_stride apart.
struct Tile {
  int64_t hv, column;
  int count;
  const float* S0;
  float* u;
  int64_t u_stride;
};

template <class V, class T>
void run_rows(const DeltaWork& w, const Segment& s, const Span& m, const Tile& c) {
  alignas(64) float p[kTileColumns] = {}, r[kTileColumns] = {};
  for (int i = m.first - m.begin; i < m.tokens(); ++i) {
    if (c.S0 != nullptr) {
      int j = 0;
      for (; j + 4 <= c.count; j += 4) read_columns<V, 4>(m.k[i], m.q[i], w.Dk, c.S0 + j * w.Dk, p + j, r + j);
      for (; j < c.count; ++j) read_columns<V, 1>(m.k[i], m.q[i], w.Dk, c.S0 + j * w.Dk, p + j, r + j);
    }
    const int64_t row = s.row + (m.begin + i - s.position), at = c.hv * w.Dv + c.column;
    const T* v = static_cast<const T*>(w.v) + row * w.v_stride + at;
    T* out = static_cast<T*>(w.out) + row * w.out_stride + at;
    const V left = V::set1(m.left[i]), beta = V::set1(m.beta[i]);
    for (int j = 0; j < c.count; j += V::kWidth) {
      const bool whole = c.count - j >= V::kWidth;
      const int n = c.count - j;
      const auto load = [&](const auto* from) { return whole ? V::load(from + j) : V::load(from + j, n); };
      const auto store = [&](V x, auto* to) { whole ? x.store(to + j) : x.store(to + j, n); };
      V predicted = left * V::load(p + j), o = left * V::load(r + j);
      for (int x = 0; x < i; ++x) {
        const V u = load(c.u + x * c.u_stride);
        predicted = fma(V::set1(m.with_k[i][x]), u, predicted);
        o = fma(V::set1(m.with_q[i][x]), u, o);
      }
      const V u = beta * (load(v) - predicted);
      store(u, c.u + i * c.u_stride);
      store(fma(V::set1(m.with_q[i][i]), u, o), out);
    }
  }
}

// N <= 4 columns by M vectors of dst <- e^(G) S0 + sum of e^(G - G_j) u_j k_j^T; dst may be S0.
template <class V, int N, int M>
inline void fold_block(const Span& m, const float (*factor)[4], int64_t Dk, int64_t d, const float* S0, float* dst) {
  const V left = V::set1(m.fold_left);
  V sum[4][M];
#pragma GCC unroll 4
  for (int j = 0; j < N; ++j)
#pragma GCC unroll 2
    for (int x = 0; x < M; ++x) sum[j][x] = S0 == nullptr ? V::zero() : left * V::load(S0 + j * Dk + d + x * V::kWidth);
  for (int i = 0; i < m.tokens(); ++i) {
    V k[M];
#pragma GCC unroll 2
    for (int x = 0; x < M; ++x) k[x] = V::load(m.k[i] + d + x * V::kWidth);
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) {
      const V u = V::set1(factor[i][j]);
#pragma GCC unroll 2
      for (int x = 0; x < M; ++x) sum[j][x] = fma(u, k[x], sum[j][x]);
    }
  }
#pragma GCC unroll 4
  for (int j = 0; j < N; ++j)
#pragma GCC unroll 2
    for (int x = 0; x < M; ++x) sum[j][x].store(dst + j * Dk + d + x * V::kWidth);
}

template <class V, int N>
inline void fold_columns(const Span& m, const Tile& c, int64_t Dk, int column, float* dst) {
  float factor[kPendingTokens][4];
  for (int i = 0; i < m.tokens(); ++i)
    for (int j = 0; j < N; ++j) factor[i][j] = m.fold[i] * c.u[i * c.u_stride + column + j];
  const float* S0 = c.S0 == nullptr ? nullptr : c.S0 + column * Dk;
  dst += column * Dk;
  int64_t d = 0;
  for (; d + 2 * V::kWidth <= Dk; d += 2 * V::kWidth) fold_block<V, N, 2>(m, factor, Dk, d, S0, dst);
  if (d < Dk) fold_block<V, N, 1>(m, factor, Dk, d, S0, dst);
}

// Columns [column, column + count) of one value head and segment.
template <class V, class T>
void recurrent_unit(const DeltaWork& w, const Segment& s, int64_t hv, int64_t column, int64_t count, float* scratch,
                    Span& m) {
  const int32_t end = s.position + s.count, settled = anchor_after_decode(s);
  float* stored = w.state + s.state_slot * w.state_slot_stride + (hv * w.Dv + column) * w.Dk;
  float* pending_u = w.pending_u + s.state_slot * w.pending_u_slot_stride + hv * w.Dv + column;
  const int64_t u_stride = w.Hv * w.Dv;
  for (int32_t t = s.anchor; t < s.position; ++t)  // rows of u are all heads apart, where no prefetcher follows
    for (int64_t j = 0; j < count; j += kLine) V::prefetch(pending_u + (t - s.anchor) * u_stride + j);
  const float* S0 = s.anchor > 0 ? stored : nullptr;
  int32_t anchor = s.anchor;  // of pending_u, as it stands now
  for (m.begin = s.anchor; m.begin < end; m.begin = m.end) {
    const int32_t boundary = (m.begin / kPendingTokens + 1) * kPendingTokens;
    m.end = boundary < end ? boundary : end;
    m.first = s.position < m.begin ? m.begin : s.position < m.end ? s.position : m.end;
    load_span<V, T>(w, s, hv, m);
    // The state at the boundary is written if it is certain, and needed if rows follow.
    float* dst = boundary <= settled ? stored : m.end < end ? scratch : nullptr;
    for (int64_t at = 0; at < count; at += kTileColumns) {
      const Tile c{hv,
                   column + at,
                   static_cast<int>(count - at < kTileColumns ? count - at : kTileColumns),
                   S0 == nullptr ? nullptr : S0 + at * w.Dk,
                   pending_u + (m.begin - anchor) * u_stride + at,
                   u_stride};
      run_rows<V, T>(w, s, m, c);
      if (dst == nullptr) continue;
      int j = 0;
      for (; j + 4 <= c.count; j += 4) fold_columns<V, 4>(m, c, w.Dk, j, dst + at * w.Dk);
      for (; j < c.count; ++j) fold_columns<V, 1>(m, c, w.Dk, j, dst + at * w.Dk);
    }
    S0 = dst;
    if (boundary > settled) continue;
    for (int32_t t = boundary; t < s.position; ++t)
      for (int64_t j = 0; j < count; ++j)
        pending_u[(t - boundary) * u_stride + j] = pending_u[(t - anchor) * u_stride + j];
    anchor = boundary;
  }
}

template <class V>
void recurrent_units(const RecurrentWork& r, int64_t begin, int64_t end, float* scratch) {
  const DeltaWork& w = r.delta;
  const int64_t blocks = (w.Dv + r.columns - 1) / r.columns;
  Span m;
  for (int64_t unit = begin; unit < end; ++unit) {
    const Segment& s = w.segments[unit / (w.Hv * blocks)];
    if (s.count == 0) continue;
    const int64_t hv = unit / blocks % w.Hv, first = unit % blocks * r.columns;
    const int64_t count = first + r.columns < w.Dv ? r.columns : w.Dv - first;
    w.bf16 ? recurrent_unit<V, uint16_t>(w, s, hv, first, count, scratch, m)
           : recurrent_unit<V, float>(w, s, hv, first, count, scratch, m);
  }
}

}  // namespace
}  // namespace quire::gdn
