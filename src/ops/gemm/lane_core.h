// The cores without tiles: lanes run along K. A group of 16 weight rows is decoded once; every pair of a
// weight row and a token has one vector accumulator that walks K in ascending order, and one fixed tree adds
// its lanes. Blocks of 4 rows by kTokens tokens only decide what is loaded how often.
//
// While a group is decoded, those that come next are prefetched; where there is nothing to decode, while few tokens
// are multiplied.
//
// Included by the file of each instruction set, with its Traits; all names have internal linkage.
#pragma once

#include <cstring>

#include "ops/gemm/core.h"
#include "ops/gemm/streams.h"

namespace quire::gemm {
namespace {

inline int64_t padded(int64_t cols) {
  return (cols + 31) / 32 * 32;
}

// 16 weight rows as kLanes-wide vectors: vector s of row r lies at first[r] + s * step.
template <class Elem>
struct LaneRows {
  const Elem* first[16];
  int64_t step = 0;
  bool decoded = false;  // or where they lie
};

// The vectors of a row in ascending order. Before each kRun-th comes enter(), where kRun is not 0.
template <class Traits, class Row>
struct LaneCursor {
  static constexpr int64_t kRun = 0;
  const Row* row;
  int64_t step;
  void enter(int64_t) {}
  auto load(int64_t s) const { return Traits::load(row + s * step); }
};

// The first of a row of FP8, which is made of blocks.
struct Fp8Code {
  std::byte bits;
};

// Columns of a row that are decoded between prefetches.
constexpr int64_t kDecodeTurn = 256;

template <class Traits>
struct LaneCore {
  using Elem = typename Traits::Elem;
  using Acc = typename Traits::Acc;
  static constexpr int kTokens = Traits::kTokens;
  static constexpr int kTokenBlock = 16 * kTokens;  // their rows stay in the second-level cache
  static constexpr int64_t kNearVectors = 4096 / (sizeof(Elem) * Traits::kLanes);
  static constexpr int kTurn = 32 / Traits::kLanes;  // vectors between which something is prefetched

  static int64_t packed_bytes(int64_t rows, int64_t cols) {
    return rows * padded(cols) * static_cast<int64_t>(sizeof(Elem));
  }
  static const Elem* token(const Packed& x, int64_t t) {
    return reinterpret_cast<const Elem*>(x.data) + t * padded(x.cols);
  }

  static void pack(const Tensor& x, const int32_t* row_of, int64_t tile, const Packed& to) {
    const int64_t end = tile * kTileTokens + kTileTokens < to.rows ? tile * kTileTokens + kTileTokens : to.rows;
    for (int64_t t = tile * kTileTokens; t < end; ++t) {
      Elem* row = const_cast<Elem*>(token(to, t));
      Traits::load_row(x, (row_of == nullptr ? t : row_of[t]) * x.stride[0], to.cols, row);
      std::memset(row + to.cols, 0, static_cast<size_t>(padded(to.cols) - to.cols) * sizeof(Elem));
    }
  }
  static bool in_place(const Tensor& x) {
    return x.dtype == Traits::kType && x.shape[1] % 32 == 0 && (x.shape[0] == 1 || x.stride[0] == x.shape[1]);
  }
  static int64_t scratch_bytes(int64_t, int64_t, int64_t cols) {
    return (2 * 16 * padded(cols)) * static_cast<int64_t>(sizeof(Elem)) + 2 * kTokens * 16 * 4;
  }

  // Vectors [begin, end) of four rows from `row` on, of all `vectors`.
  struct Piece {
    int row;
    int64_t begin, end, vectors;
  };
  enum class Walk {
    kWhole,  // all vectors at once
    kAhead,  // the same, and a fourth of a group's share is prefetched meanwhile
    kPart,   // accumulators come from the piece before, and go to the next
  };

  // sums[token][row] = what is multiplied, with up to kTokens tokens, or accs[token][row] where more follows.
  template <int kCount, Walk kWalk, class Row>
  static void multiply(const LaneRows<Row>& w, const Piece& p, const Elem* const* x, PrefetchStreams* streams,
                       PrefetchPace* of_streams, Acc (*accs)[4], float (*sums)[16]) {
    constexpr bool kPrefetch = kWalk == Walk::kAhead, kPart = kWalk == Walk::kPart;
    const int64_t begin = kPart ? p.begin : 0, end = kPart ? p.end : p.vectors;
    PrefetchStreams prefetch = kPrefetch ? *streams : PrefetchStreams{};
    const int64_t share = kPrefetch && kTurn == 1 ? prefetch.share(4 * p.vectors) : 0;
    PrefetchPace pace = kPrefetch ? *of_streams : PrefetchPace();
    Acc acc[4][kCount];
    for (int i = 0; i < 4; ++i)
      for (int j = 0; j < kCount; ++j) acc[i][j] = kPart && begin > 0 ? accs[j][i] : Traits::zero();
    const Row* const* const row = w.first + p.row;
    using Cursor = LaneCursor<Traits, Row>;
    Cursor w0{row[0], w.step}, w1{row[1], w.step}, w2{row[2], w.step}, w3{row[3], w.step};
    for (int64_t s = begin; s < end; ++s) {
      if constexpr (Cursor::kRun > 0)
        if (s % Cursor::kRun == 0) w0.enter(s), w1.enter(s), w2.enter(s), w3.enter(s);
      for (int j = 0; j < kCount; ++j) {
        const auto v = Traits::load(x[j] + s * Traits::kLanes);
        acc[0][j] = Traits::madd(acc[0][j], w0.load(s), v);
        acc[1][j] = Traits::madd(acc[1][j], w1.load(s), v);
        acc[2][j] = Traits::madd(acc[2][j], w2.load(s), v);
        acc[3][j] = Traits::madd(acc[3][j], w3.load(s), v);
      }
      if (kPrefetch && kTurn == 1) prefetch.issue(share);
      if (kPrefetch && kTurn > 1 && s % kTurn == 0) pace.turn(prefetch);
    }
    if (kPrefetch) *streams = prefetch, *of_streams = pace;
    for (int i = 0; i < 4; ++i)
      for (int j = 0; j < kCount; ++j) {
        if (kPart && end < p.vectors)
          accs[j][i] = acc[i][j];
        else
          sums[j][p.row + i] = Traits::sum(acc[i][j]);
      }
  }

  // 16 rows by `count` tokens of a block. In many blocks tokens meet four rows at a time, and as many columns
  // of them as stay in the first-level cache.
  template <class Row>
  static void multiply(const LaneRows<Row>& w, const Elem* const* x, int count, bool many, int64_t vectors,
                       PrefetchStreams* streams, float (*sums)[16]) {
    PrefetchPace pace = streams == nullptr ? PrefetchPace() : PrefetchPace(*streams, 4 * vectors / kTurn);
    Acc accs[kTokenBlock][4];
    const int near = many ? 4 : 16;
    const int64_t turn = many ? kNearVectors : vectors;
    for (int first = 0; first < 16; first += near)
      for (int64_t s = 0; s < vectors; s += turn)
        for (int t = 0; t < count; t += kTokens)
          for (int r = first; r < first + near; r += 4) {
            const Piece piece{r, s, std::min(s + turn, vectors), vectors};
            const auto run = [&]<int kCount, Walk kWalk>() {
              multiply<kCount, kWalk>(w, piece, x + t, streams, &pace, accs + t, sums + t);
            };
            if (many)
              run.template operator()<kTokens, Walk::kPart>();
            else if (count - t > 2)
              run.template operator()<kTokens, Walk::kWhole>();
            else if (streams == nullptr)
              count - t == 1 ? run.template operator()<1, Walk::kWhole>() : run.template operator()<2, Walk::kWhole>();
            else
              count - t == 1 ? run.template operator()<1, Walk::kAhead>() : run.template operator()<2, Walk::kAhead>();
          }
  }

  // The rows from `row` on where they lie. Rows past the end repeat the first: what they give is not stored.
  template <class Row>
  static LaneRows<Row> rows_in_place(const Weight& w, int64_t expert, int64_t row) {
    LaneRows<Row> rows;
    for (int64_t r = 0; r < 16; ++r)
      rows.first[r] = reinterpret_cast<const Row*>(w.row(row + (r < w.rows - row ? r : 0), expert));
    rows.step = Traits::kLanes;
    return rows;
  }

  // fn(rows) with 16 rows as they are multiplied. Few tokens take rows where they lie, if the core widens them on the
  // way: decoding them to memory would cost more than it saves.
  template <class Fn>
  static void with_rows(const Weight& w, int64_t expert, int64_t row, int64_t tokens, PrefetchStreams* next,
                        Elem* scratch, Fn&& fn) {
    if constexpr (Traits::kWidens) {
      if (w.dtype == DType::kBF16 && tokens <= kTokens && w.cols % 32 == 0)
        return fn(rows_in_place<uint16_t>(w, expert, row));
      if (w.dtype == DType::kFP8 && tokens <= Traits::kFp8Tokens) return fn(rows_in_place<Fp8Code>(w, expert, row));
    }
    const int rows = static_cast<int>(std::min<int64_t>(w.rows - row, 16));
    PrefetchAhead ahead(next, rows * ((w.cols + kDecodeTurn - 1) / kDecodeTurn));
    fn(Traits::decode(w, expert, row, rows, tokens > kTokenBlock, ahead, scratch));
  }

  // Calls result(token, sums of a, sums of b) for all tokens; b may be null. a is group `group` of the job, b
  // the next.
  template <class RowsA, class RowsB, class Result>
  static void each_token_block(const RowsA* a, const RowsB* b, const Packed& x, GroupOrder& order, int64_t group,
                               Result&& result) {
    const int64_t vectors = padded(x.cols) / Traits::kLanes;
    const bool many = x.rows > kTokenBlock;
    alignas(64) float sums[2][kTokenBlock + kTokens][16];
    for (int64_t t = 0; t < x.rows; t += kTokenBlock) {
      const int count = static_cast<int>(x.rows - t < kTokenBlock ? x.rows - t : kTokenBlock);
      const Elem* tokens[kTokenBlock + kTokens];
      for (int j = 0; j < count + kTokens; ++j) tokens[j] = token(x, j < count ? t + j : t);
      for (int i = 0; i < (b == nullptr ? 1 : 2); ++i) {
        const bool decoded = i == 0 ? a->decoded : b->decoded;
        PrefetchStreams* const streams = t == 0 && count <= 2 && !decoded ? order.prefetch_beside(group + i) : nullptr;
        if (i == 0)
          multiply(*a, tokens, count, many, vectors, streams, sums[i]);
        else
          multiply(*b, tokens, count, many, vectors, streams, sums[i]);
      }
      for (int j = 0; j < count; ++j) result(t + j, sums[0][j], sums[1][j]);
    }
  }

  static void project(const ProjectJob& job, std::byte* scratch) {
    const Weight& w = *job.w;
    const float scale = w.scale == nullptr ? 1.0f : w.scale[job.expert];
    const int64_t end = job.row + job.panels * kPanelRows < w.rows ? job.row + job.panels * kPanelRows : w.rows;
    GroupOrder order({w.row(job.row, job.expert)}, (end - job.row + 15) / 16, 16 * w.row_bytes(), job.prefetch);
    for (int64_t row = job.row; row < end; row += 16) {
      const int64_t group = (row - job.row) / 16;
      Elem* const to = reinterpret_cast<Elem*>(scratch);
      with_rows(w, job.expert, row, job.x->rows, order.prefetch_beside(group), to, [&](const auto& rows) {
        constexpr decltype(&rows) kNone = nullptr;
        each_token_block(&rows, kNone, *job.x, order, group, [&](int64_t t, const float* sums, const float*) {
          Traits::store(*job.out, t, row, end - row < 16 ? end - row : 16, sums, scale);
        });
      });
    }
  }

  static void swiglu(const SwigluJob& job, std::byte* scratch) {
    const float gate_scale = job.gate->scale == nullptr ? 1.0f : job.gate->scale[job.expert];
    const float up_scale = job.up->scale == nullptr ? 1.0f : job.up->scale[job.expert];
    const int64_t groups = std::min(job.units, (job.gate->rows - job.row + 15) / 16) * 2;
    GroupOrder order({job.gate->row(job.row, job.expert), job.up->row(job.row, job.expert)}, groups,
                     16 * job.gate->row_bytes(), job.prefetch);
    for (int64_t u = 0; u < job.units; ++u) {
      const int64_t row = job.row + u * kPairRows, left = job.gate->rows - row;
      if (left <= 0) {
        for (int64_t t = 0; t < job.mid->rows; ++t)
          std::memset(const_cast<Elem*>(token(*job.mid, t)) + row, 0, 16 * sizeof(Elem));
        continue;
      }
      Elem* const first = reinterpret_cast<Elem*>(scratch);
      const auto store = [&](int64_t t, const float* g, const float* v) {
        alignas(64) float gates[16], ups[16];
        for (int i = 0; i < 16; ++i) {
          const int64_t n = row + (i < left ? i : 0);
          gates[i] = g[i] * gate_scale;
          ups[i] = v[i] * up_scale;
          if (job.gate_bias != nullptr) gates[i] += job.gate_bias[n];
          if (job.up_bias != nullptr) ups[i] += job.up_bias[n];
        }
        Elem* const to = const_cast<Elem*>(token(*job.mid, t)) + row;
        Traits::store_swiglu(gates, ups, job, to);
        for (int64_t i = left; i < 16; ++i) to[i] = Elem{};
      };
      with_rows(*job.gate, job.expert, row, job.x->rows, order.prefetch_beside(2 * u), first, [&](const auto& gate) {
        PrefetchStreams* const next = gate.decoded ? order.prefetch_beside(2 * u + 1) : nullptr;
        with_rows(*job.up, job.expert, row, job.x->rows, next, first + 16 * padded(job.x->cols),
                  [&](const auto& up) { each_token_block(&gate, &up, *job.x, order, 2 * u, store); });
      });
    }
  }

  static void finish() {}
};

template <class Traits>
inline constexpr Core kLaneCore = {LaneCore<Traits>::packed_bytes, LaneCore<Traits>::pack,
                                   LaneCore<Traits>::in_place,     LaneCore<Traits>::scratch_bytes,
                                   LaneCore<Traits>::project,      LaneCore<Traits>::swiglu,
                                   LaneCore<Traits>::finish};

}  // namespace
}  // namespace quire::gemm
