// The few-token path of the AMX core: what one thread does with a stream of panels while their weights come
// in from memory. Everything has internal linkage.
//
// A panel goes by in chunks of 128 columns (256 where blocks are that long). While one chunk, already
// decoded, is multiplied, the next is decoded into the other of two buffers, and the panel after that is
// prefetched. The buffers are small so that they stay in the first-level cache beside the tables
// and the weights: with 256 columns, 4-bit formats take a fifth to a half longer. The five tile
// instructions of a step stand apart from each other between rows that are decoded: in one group they
// fill the reorder buffer with waiting, and a step takes a tenth to a third longer (docs/kernels-cpu.md).
//
// Memory: rows of a panel are decoded a few blocks at a time in turn, an order that the prefetcher of the
// second-level cache does not follow. So a panel is prefetched as a whole while the one before it is computed,
// in four streams of ascending addresses. That follows what a plain read reaches (over 90%).
#pragma once

#include <immintrin.h>

#include <array>
#include <utility>

#include "ops/gemm/core.h"
#include "ops/gemm/formats_avx512.h"

namespace quire::gemm {
namespace {

constexpr int64_t kTileBytes = 1024;

// Bytes from row to row of a decoded chunk: out of each other's cache sets.
constexpr int64_t stream_row(int64_t chunk) {
  return chunk * 2 + 64;
}
constexpr int64_t kStreamBuffer = kPanelRows * stream_row(kDecodeChunk);
constexpr int64_t kStreamScratch = 2 * kTileBytes + 2 * kStreamBuffer;  // C and two chunks

inline int64_t steps_of(int64_t cols) {
  return (cols + 31) / 32;
}

// 16 rows of a weight, or what is left of them.
struct RowTile {
  DType type = DType::kBF16;
  const std::byte* first = nullptr;
  int64_t row_bytes = 0;
  int rows = 0;
  bool direct = false;  // tiles can be loaded from the file's bytes

  RowTile() = default;
  RowTile(const Weight& w, int64_t expert, int64_t row)
      : type(w.dtype),
        first(w.row(row, expert)),
        row_bytes(w.row_bytes()),
        rows(static_cast<int>(w.rows - row < 16 ? w.rows - row : 16)),
        direct(w.dtype == DType::kBF16 && rows == 16 && w.cols % 32 == 0) {}
};
using Panel = std::array<RowTile, 2>;

// Where the A tiles of a row tile are found: `stride` bytes from row to row, `step` from tile to tile.
struct Tiles {
  const std::byte* at;
  int64_t stride;
  int64_t step;
};

// One chunk's turn.
struct StreamTurn {
  // Multiplied: `steps` tiles of two row tiles and of the tokens.
  Tiles a[2] = {};
  const std::byte* b = nullptr;
  int64_t b_step = 0;
  int64_t steps = 0;
  // Decoded meanwhile: `count` columns of rows[i] rows from first[i] on; no columns: nothing.
  const std::byte* first[2] = {};
  int64_t row_bytes = 0;
  int rows[2] = {};
  int64_t count = 0;
  std::byte* decoded = nullptr;
  int64_t chunk = 0;  // columns of a whole one
  // Prefetched: `prefetch_lines` cache lines from each of these.
  const std::byte* prefetch[4] = {};
  int64_t prefetch_lines = 0;

  bool full() const {  // nothing ends within this turn
    return steps == chunk / 32 && count == chunk && rows[0] == 16 && rows[1] == 16;
  }
};

// Columns of a chunk: a multiple of the block and of 32. BF16 is decoded at the ends of a weight only.
template <class Format>
constexpr int64_t kChunkOf = Format::kColumns == 1 || Format::kColumns > 128 ? kDecodeChunk : 128;
constexpr auto kChunks = table_of_rows<int64_t>([]<class Format>() { return kChunkOf<Format>; });

inline int64_t chunk_of(DType type) {
  return kChunks[type];
}

// Tiles: C in 0 and 1, A in 4 and 5, B in 6.
template <class Format, bool kFull>
void take_turn(const StreamTurn& t) {
  constexpr int64_t kChunk = kChunkOf<Format>, kSteps = kChunk / 32, kRows = kPanelRows / kSteps;
  const Format format;
  const size_t b_stride = static_cast<size_t>(t.b_step / 16), a0_stride = static_cast<size_t>(t.a[0].stride),
               a1_stride = static_cast<size_t>(t.a[1].stride);
  const std::byte *a0 = t.a[0].at, *a1 = t.a[1].at, *b = t.b, *first = t.first[0];
  std::byte* to = t.decoded;
  const auto decode = [&](int64_t begin) {  // a quarter of a step's rows
    for (int64_t row = begin; row < begin + kRows / 4; ++row) {
      if (!kFull && (t.count == 0 || row % 16 >= t.rows[row / 16])) continue;
      format.row(first + row % 16 * t.row_bytes, kFull ? kChunk : t.count,
                 reinterpret_cast<uint16_t*>(to + row * stream_row(kChunk)), 32);
    }
  };
  int64_t line = 0;
  for (int64_t s = 0; s < kSteps; ++s) {
    const bool product = kFull || s < t.steps;
    const int64_t row = kRows * s;
    if (s == kSteps / 2) first = t.first[1];
    if (product) _tile_loadd(6, b, b_stride);
    decode(row);
    if (product) _tile_loadd(4, a0, a0_stride);
    decode(row + kRows / 4);
    if (product) _tile_dpbf16ps(0, 4, 6);
    decode(row + kRows / 2);
    if (product) _tile_loadd(5, a1, a1_stride);
    decode(row + kRows / 4 * 3);
    if (product) _tile_dpbf16ps(1, 5, 6);
    for (const int64_t end = t.prefetch_lines * (s + 1) / kSteps; line < end; ++line)
      for (const std::byte* stream : t.prefetch)
        _mm_prefetch(reinterpret_cast<const char*>(stream + line * 64), _MM_HINT_T1);
    b += t.b_step;
    a0 += t.a[0].step;
    a1 += t.a[1].step;
  }
}
template <class Format>
void take_turn(const StreamTurn& t) {
  if (t.full())
    take_turn<Format, true>(t);
  else
    take_turn<Format, false>(t);
}

using TakeTurn = void (*)(const StreamTurn&);
constexpr auto kTurns = table_of_rows<TakeTurn>([]<class Format>() { return take_turn<Format>; });

inline TakeTurn turn_of(DType type) {
  return kTurns[type];
}

struct StreamJob {
  int64_t panels = 0;
  const std::byte* b = nullptr;  // the packed tokens
  int64_t cols = 0;              // K
  int width = 1;                 // of a B tile, in tokens
  Prefetch after;                // what this thread takes next
  std::byte* scratch = nullptr;  // kStreamScratch
};

// The order of turns: chunk after chunk of all panels.
class Stream {
 public:
  Stream(const StreamJob& job, const Panel& first)
      : job_(job),
        // Of two types the one with the longer chunks, which suit the other as well.
        type_(chunk_of(first[0].type) < chunk_of(first[1].type) ? first[1].type : first[0].type),
        chunk_(chunk_of(type_)),
        row_(stream_row(chunk_)),
        chunks_((job.cols + chunk_ - 1) / chunk_),
        decoded_(job.scratch + 2 * kTileBytes),
        other_(decoded_ + kStreamBuffer) {}

  template <class PanelOf, class Result>
  void run(PanelOf&& panel_of, Result&& result) {
    float* const c = reinterpret_cast<float*>(job_.scratch);
    Panel now = panel_of(0);
    const TakeTurn take_turn = turn_of(type_);
    StreamTurn first;
    plan_decode(now, 0, first);
    if (first.count > 0) take_turn(first);
    std::swap(decoded_, other_);
    for (int64_t p = 0; p < job_.panels; ++p) {
      const bool more = p + 1 < job_.panels;
      const Panel next = more ? panel_of(p + 1) : now;
      const Prefetch prefetch = more ? Prefetch{{next[0].first, next[1].first}, next[0].row_bytes} : job_.after;
      _tile_zero(0);
      _tile_zero(1);
      for (int64_t i = 0; i < chunks_; ++i) {
        StreamTurn turn;
        if (i + 1 < chunks_)
          plan_decode(now, i + 1, turn);
        else if (more)
          plan_decode(next, 0, turn);
        plan_prefetch(prefetch, i, turn);
        plan_product(now, i, turn);
        take_turn(turn);
        std::swap(decoded_, other_);
      }
      const size_t c_stride = static_cast<size_t>(4 * job_.width);
      _tile_stored(0, c, c_stride);
      _tile_stored(1, c + 256, c_stride);
      result(p, c, c + 256);
      now = next;
    }
  }

 private:
  static bool direct(const Panel& p) { return p[0].direct && p[1].direct; }
  int64_t columns(int64_t chunk) const {
    const int64_t left = job_.cols - chunk * chunk_;
    return left < chunk_ ? left : chunk_;
  }

  void plan_decode(const Panel& p, int64_t chunk, StreamTurn& turn) {
    if (direct(p)) return;
    const int64_t k = chunk * chunk_;
    if (p[0].type != p[1].type) {  // a turn decodes one format only
      for (int i = 0; i < 2; ++i)
        decoder_of(p[i].type)(p[i].first, p[i].row_bytes, p[i].rows, k, columns(chunk),
                              reinterpret_cast<uint16_t*>(other_ + i * 16 * row_), {row_ / 2, 32});
      return;
    }
    turn.count = columns(chunk);
    turn.decoded = other_;
    turn.chunk = chunk_;
    turn.row_bytes = p[0].row_bytes;
    for (int i = 0; i < 2; ++i) {
      turn.first[i] = p[i].first + p[i].row_bytes * k / job_.cols;
      turn.rows[i] = p[i].rows;
    }
  }
  // In the turn of chunk i the i-th part of what lies ahead: four runs of eight rows, side by side.
  void plan_prefetch(const Prefetch& a, int64_t chunk, StreamTurn& turn) const {
    if (a.rows[0] == nullptr) return;
    const int64_t lines = (8 * a.row_bytes + 63) / 64, begin = lines * chunk / chunks_;
    turn.prefetch_lines = lines * (chunk + 1) / chunks_ - begin;
    for (int i = 0; i < 4; ++i) turn.prefetch[i] = a.rows[i / 2] + i % 2 * 8 * a.row_bytes + begin * 64;
  }
  void plan_product(const Panel& p, int64_t chunk, StreamTurn& turn) const {
    const int64_t k = chunk * chunk_;
    for (int i = 0; i < 2; ++i)
      turn.a[i] = direct(p) ? Tiles{p[i].first + k * 2, p[i].row_bytes, 64} : Tiles{decoded_ + i * 16 * row_, row_, 64};
    turn.b_step = 64 * job_.width;
    turn.b = job_.b + k / 32 * turn.b_step;
    turn.steps = steps_of(columns(chunk));
  }

  const StreamJob& job_;
  const DType type_;      // whose turns are taken
  const int64_t chunk_;   // columns
  const int64_t row_;     // bytes of a decoded row, with padding
  const int64_t chunks_;  // of a panel
  std::byte* decoded_;    // what is multiplied
  std::byte* other_;      // what is decoded
};

// panel_of(p) gives a panel; result(p, C of its first row tile, C of the second), 16 rows of job.width
// floats.
template <class PanelOf, class Result>
void stream_panels(const StreamJob& job, PanelOf&& panel_of, Result&& result) {
  Stream(job, panel_of(0)).run(panel_of, result);
}

}  // namespace
}  // namespace quire::gemm
