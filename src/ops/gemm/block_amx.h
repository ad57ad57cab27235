// The many-token path of the AMX core: a block of panels shares each chunk of the tokens, which stays in the
// second-level cache, and a panel's decoded chunk of K meets all token tiles from the first-level cache, two
// by two tiles at a time. Everything has internal linkage.
//
// What the products leave idle is used (docs/kernels-cpu.md has the figures):
//   * While a panel's chunk is multiplied, the next panel's is decoded into the other of two buffers, a piece
//     between the tile instructions of every step or every few. Set between pairs of token tiles, decoding
//     would not overlap with anything: products wait for nothing there but C.
//   * C of the pair of token tiles before is stored, and this pair's loaded, between its first products. All
//     four tiles at once would fill the machine's queues with stores that wait for the last products.
//   * The rows that are decoded next are prefetched, a little at every step.
//   * So is C of the next pair, because products wait for its tiles.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <utility>

#include "ops/gemm/core.h"
#include "ops/gemm/formats_avx512.h"
#include "ops/gemm/stream_amx.h"

namespace quire::gemm {
namespace {

constexpr int64_t kBlockSteps = 16;  // tiles of K in a chunk
constexpr int64_t kBlockColumns = kBlockSteps * 32;
constexpr int64_t kBlockTiles = 32;  // token tiles that share decoded weights
// Bytes from row to row of a decoded chunk: out of each other's cache sets.
constexpr int64_t kBlockRow = kBlockColumns * 2 + 64;
constexpr int64_t kBlockBuffer = kPanelRows * kBlockRow;
constexpr int64_t kCFloats = 1024;  // of a pair of token tiles: 2 x 2 tiles

inline int64_t block_scratch_bytes(int64_t panels, int64_t tiles) {
  const int64_t pairs = ((tiles < kBlockTiles ? tiles : kBlockTiles) + 1) / 2;
  return 2 * kBlockBuffer + pairs * panels * kCFloats * 4;
}

// GCC 12's tile intrinsics do not say that they read and write memory.
inline void compiler_barrier() {
  asm volatile("" ::: "memory");
}

// C (2 x 2 tiles: that of the first token tile for both row tiles, then that of the second) += A B over some
// steps.
struct Product {
  float* c = nullptr;
  float* before = nullptr;        // C that is still in the tiles; null: none
  const float* next_c = nullptr;  // what will be wanted next
  bool fresh = false;             // C starts at zero
  const std::byte* a = nullptr;   // a decoded chunk
  const std::byte* b = nullptr;
  int64_t b_next = 0;  // bytes to the second token tile
};

// Rows of a panel's chunk of K, all in one row tile.
struct Rows {
  const std::byte* first = nullptr;  // the chunk of the first row
  int64_t row_bytes = 0;
};

// A panel's chunk of K as it lies in memory. Found once a chunk, not for every pair of token tiles: that
// would cost a sixth of the products' time.
struct PanelChunk {
  const std::byte* first[2] = {};  // of each row tile
  int64_t row_bytes = 0;

  Rows from(int64_t row) const { return {first[row / 16] + row % 16 * row_bytes, row_bytes}; }
};

// The tile instructions name their registers, so that these are one function for each.
template <int kTile>
inline void zero_c() {
  if constexpr (kTile == 0) _tile_zero(0);
  if constexpr (kTile == 1) _tile_zero(1);
  if constexpr (kTile == 2) _tile_zero(2);
  if constexpr (kTile == 3) _tile_zero(3);
}
template <int kTile>
inline void load_c(const float* c) {
  if constexpr (kTile == 0) _tile_loadd(0, c, 64);
  if constexpr (kTile == 1) _tile_loadd(1, c + 256, 64);
  if constexpr (kTile == 2) _tile_loadd(2, c + 512, 64);
  if constexpr (kTile == 3) _tile_loadd(3, c + 768, 64);
}
template <int kTile>
inline void store_c(float* c) {
  if constexpr (kTile == 0) _tile_stored(0, c, 64);
  if constexpr (kTile == 1) _tile_stored(1, c + 256, 64);
  if constexpr (kTile == 2) _tile_stored(2, c + 512, 64);
  if constexpr (kTile == 3) _tile_stored(3, c + 768, 64);
}
inline void store_all_c(float* c) {
  if (c == nullptr) return;
  store_c<0>(c);
  store_c<1>(c);
  store_c<2>(c);
  store_c<3>(c);
  compiler_barrier();
}

// Puts away a tile of the C before, if there is one, and gets this one's.
template <int kTile>
inline __attribute__((always_inline)) void exchange_c(const Product& t) {
  if (t.before != nullptr) store_c<kTile>(t.before);
  if (t.fresh)
    zero_c<kTile>();
  else
    load_c<kTile>(t.c);
}

// Tiles: C in 0 ... 3, A in 4 and 5, B in 6 and 7. A stays in the first-level cache, B passes through it
// once: loads that say so (tileloaddt1) do not push A out. beside(s) comes between the products of step s. C
// stays in the tiles.
template <class Beside>
inline __attribute__((always_inline)) void multiply(const Product& t, int64_t steps, Beside&& beside) {
  constexpr int64_t kCPart = kCFloats / kBlockSteps, kRowTile = 16 * kBlockRow;
  const std::byte *a = t.a, *b = t.b;
  const int64_t b_next = t.b_next;
  const float* next_c = t.next_c;
  compiler_barrier();
  _tile_stream_loadd(6, b, 64);
  _tile_loadd(4, a, kBlockRow);
  exchange_c<0>(t);
  _tile_dpbf16ps(0, 4, 6);
  _tile_loadd(5, a + kRowTile, kBlockRow);
  exchange_c<1>(t);
  _tile_dpbf16ps(1, 5, 6);
  _tile_stream_loadd(7, b + b_next, 64);
  exchange_c<2>(t);
  beside(0);
  _tile_dpbf16ps(2, 4, 7);
  exchange_c<3>(t);
  _tile_dpbf16ps(3, 5, 7);
  for (int64_t i = 0; i < kCPart; i += 16) _mm_prefetch(reinterpret_cast<const char*>(next_c + i), _MM_HINT_T0);
  for (int64_t s = 1; s < steps; ++s) {
    a += 64;
    b += kTileBytes;
    next_c += kCPart;
    _tile_stream_loadd(6, b, 64);
    _tile_stream_loadd(7, b + b_next, 64);
    _tile_loadd(4, a, kBlockRow);
    _tile_loadd(5, a + kRowTile, kBlockRow);
    for (int64_t i = 0; i < kCPart; i += 16) _mm_prefetch(reinterpret_cast<const char*>(next_c + i), _MM_HINT_T0);
    _tile_dpbf16ps(0, 4, 6);
    beside(s);
    _tile_dpbf16ps(1, 5, 6);
    _tile_dpbf16ps(2, 4, 7);
    _tile_dpbf16ps(3, 5, 7);
  }
  compiler_barrier();
}

// The same for the last of an odd number of token tiles, whose C is put away.
inline void multiply_one(const Product& t, int64_t steps) {
  store_all_c(t.before);
  const std::byte *a = t.a, *b = t.b;
  if (t.fresh) {
    zero_c<0>();
    zero_c<1>();
  } else {
    load_c<0>(t.c);
    load_c<1>(t.c);
  }
  for (int64_t s = 0; s < steps; ++s, a += 64, b += kTileBytes) {
    _tile_stream_loadd(6, b, 64);
    _tile_loadd(4, a, kBlockRow);
    _tile_loadd(5, a + 16 * kBlockRow, kBlockRow);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 5, 6);
  }
  store_c<0>(t.c);
  store_c<1>(t.c);
  compiler_barrier();
}

// A chunk of K for pairs of token tiles, with the decoding of the next one beside. Every pair takes a turn
// that decodes 2 `pairs` rows, and prefetches two of those that come a turn later.
struct ChunkJob {
  Product first;               // of the first pair
  int64_t b_step = 0;          // bytes from pair to pair
  PanelChunk decode;           // the next chunk
  Rows after;                  // what is wanted after it
  int64_t prefetch_lines = 0;  // of a row's chunk, at most kBlockSteps
  std::byte* decoded = nullptr;
  int64_t pairs = 1;  // of rows, a power of two

  int64_t turns() const { return kPanelRows / (2 * pairs); }
};

// Every step decodes `pairs` times 64 weights, or every few steps a block of more. One call for all pairs: a
// call for each costs 2 to 3% of the products' time.
template <class Format, bool kOnePair>
void multiply_and_decode(const ChunkJob& job) {
  constexpr int64_t kPiece = Format::kColumns > 64 ? Format::kColumns : 64, kPerRow = kBlockColumns / kPiece,
                    kPieceBytes = kPiece / Format::kColumns * Format::kBytes;
  const Format format;
  const int64_t pairs = kOnePair ? 1 : job.pairs, lines = job.prefetch_lines, turns = job.turns();
  Product t = job.first;
  std::byte* decoded = job.decoded;
  for (int64_t turn = 0; turn < turns; ++turn) {
    const Rows decode = job.decode.from(turn * 2 * pairs);
    // With more than two rows a turn, decoding is the longer part and memory keeps up.
    const Rows later = turn + 1 < turns ? job.decode.from((turn + 1) * 2 * pairs) : job.after;
    multiply(
        t, kBlockSteps, [&](int64_t s) __attribute__((always_inline)) {
          if (s < lines) {
            _mm_prefetch(reinterpret_cast<const char*>(later.first + s * 64), _MM_HINT_T1);
            _mm_prefetch(reinterpret_cast<const char*>(later.first + later.row_bytes + s * 64), _MM_HINT_T1);
          }
          for (int64_t i = s * pairs * 64 / kPiece; i < (s + 1) * pairs * 64 / kPiece; ++i) {
            const int64_t row = i / kPerRow, column = i % kPerRow;
            format.row(decode.first + row * decode.row_bytes + column * kPieceBytes, kPiece,
                       reinterpret_cast<uint16_t*>(decoded + row * kBlockRow + column * kPiece * 2), 32);
          }
        });
    decoded += 2 * pairs * kBlockRow;
    t.before = t.c;
    t.c += kCFloats;
    t.next_c += kCFloats;
    t.b += job.b_step;
  }
}

using MultiplyAndDecode = void (*)(const ChunkJob&);

template <bool kOnePair>
constexpr auto kMultiplyAndDecode = table_of_rows<MultiplyAndDecode>([]<class Format>() {
  return multiply_and_decode<Format, kOnePair>;
});

inline MultiplyAndDecode multiply_and_decode_of(DType type, bool one_pair) {
  return one_pair ? kMultiplyAndDecode<true>[type] : kMultiplyAndDecode<false>[type];
}

// panel_of(p) for the panels of a block; `after` is what this thread takes next.
template <class PanelOf>
class Block {
 public:
  Block(int64_t panels, PanelOf& panel_of, const Packed& x, const Prefetch& after, std::byte* scratch)
      : panels_(panels),
        panel_of_(panel_of),
        x_(x),
        after_(after),
        tile_bytes_(steps_of(x.cols) * kTileBytes),
        decoded_(scratch),
        other_(scratch + kBlockBuffer),
        c_(reinterpret_cast<float*>(scratch + 2 * kBlockBuffer)) {}

  // result(p, token tile, C of the first row tile, C of the second) for every panel and token tile.
  template <class Result>
  void run(Result&& result) {
    for (first_ = 0; first_ < x_.tiles(); first_ += kBlockTiles) {
      tiles_ = x_.tiles() - first_ < kBlockTiles ? x_.tiles() - first_ : kBlockTiles;
      decode({0, 0}, decoded_);
      for (Place now{0, 0}; now.k < x_.cols; now = following(now)) multiply_chunk(now);
      store_all_c(in_tiles_);
      in_tiles_ = nullptr;
      // Tile after tile, so that neighbouring panels write the same lines and pages of y.
      for (int64_t t = 0; t < tiles_; ++t)
        for (int64_t p = 0; p < panels_; ++p) {
          const float* const c = c_of(p, t / 2) + t % 2 * 512;
          result(p, first_ + t, c, c + 256);
        }
    }
  }

 private:
  struct Place {
    int64_t panel, k;  // the chunk that starts at column k
  };
  Place following(Place at) const {
    return at.panel + 1 < panels_ ? Place{at.panel + 1, at.k} : Place{0, at.k + kBlockColumns};
  }
  int64_t columns(Place at) const { return x_.cols - at.k < kBlockColumns ? x_.cols - at.k : kBlockColumns; }
  int64_t pairs() const { return (tiles_ + 1) / 2; }
  float* c_of(int64_t panel, int64_t pair) const { return c_ + (panel * pairs() + pair) * kCFloats; }

  void decode(Place at, std::byte* to) const {
    const Panel panel = panel_of_(at.panel);
    for (int i = 0; i < 2; ++i)
      decoder_of(panel[i].type)(panel[i].first, panel[i].row_bytes, panel[i].rows, at.k, columns(at),
                                reinterpret_cast<uint16_t*>(to + i * 16 * kBlockRow), {kBlockRow / 2, 32});
  }
  // Past the block's last chunk: what this thread takes next, or, if that is nothing, anything that can be
  // prefetched.
  PanelChunk chunk_of(Place at) const {
    if (at.k >= x_.cols && after_.rows[0] != nullptr) return {{after_.rows[0], after_.rows[1]}, after_.row_bytes};
    if (at.k >= x_.cols) at = {0, 0};
    const Panel panel = panel_of_(at.panel);
    const int64_t row_bytes = panel[0].row_bytes, begin = row_bytes * at.k / x_.cols;
    return {{panel[0].first + begin, panel[1].first + begin}, row_bytes};
  }

  Product product(Place now, int64_t pair) const {
    Product t;
    t.c = c_of(now.panel, pair);
    t.before = in_tiles_;
    t.next_c = t.c + kCFloats;  // also from panel to panel
    t.fresh = now.k == 0;
    t.a = decoded_;
    t.b = x_.data + (first_ + 2 * pair) * tile_bytes_ + now.k / 32 * kTileBytes;
    t.b_next = tile_bytes_;
    return t;
  }

  void multiply_chunk(Place now) {
    const Place next = following(now);
    const bool more = next.k < x_.cols;
    const Panel panel = panel_of_(more ? next.panel : now.panel);
    const int64_t whole = tiles_ / 2;  // pairs of two token tiles
    const bool beside = more && whole > 1 && columns(now) == kBlockColumns && columns(next) == kBlockColumns &&
                        panel[0].type == panel[1].type && panel[0].rows == 16 && panel[1].rows == 16;
    int64_t pair = 0;
    if (beside) {
      // An even number of rows for each pair, all of one row tile (so there are two pairs at least); the last
      // pairs may be left without.
      ChunkJob job;
      while (job.pairs * whole < kPanelRows / 2) job.pairs *= 2;
      job.first = product(now, 0);
      job.b_step = 2 * tile_bytes_;
      job.decode = chunk_of(next);
      job.after = chunk_of(following(next)).from(0);
      job.prefetch_lines = std::min<int64_t>(panel[0].row_bytes * kBlockColumns / x_.cols / 64 + 1, kBlockSteps);
      job.decoded = other_;
      multiply_and_decode_of(panel[0].type, job.pairs == 1)(job);
      pair = job.turns();
      in_tiles_ = c_of(now.panel, pair - 1);
    }
    const auto nothing = [](int64_t) {};
    const int64_t steps = steps_of(columns(now));
    for (; pair < whole; ++pair) {
      multiply(product(now, pair), steps, nothing);
      in_tiles_ = c_of(now.panel, pair);
    }
    if (pair < pairs()) {
      multiply_one(product(now, pair), steps);
      in_tiles_ = nullptr;
    }
    if (more && !beside) decode(next, other_);
    std::swap(decoded_, other_);
  }

  const int64_t panels_;
  PanelOf& panel_of_;
  const Packed& x_;
  const Prefetch& after_;
  const int64_t tile_bytes_;  // of one token tile over all of K
  std::byte* decoded_;        // what is multiplied
  std::byte* other_;          // what is decoded
  float* const c_;
  float* in_tiles_ = nullptr;      // the C that has not been put away yet
  int64_t first_ = 0, tiles_ = 0;  // the token tiles of this round
};

template <class PanelOf, class Result>
void block_panels(int64_t panels, PanelOf&& panel_of, const Packed& x, const Prefetch& after, std::byte* scratch,
                  Result&& result) {
  Block<std::remove_reference_t<PanelOf>>(panels, panel_of, x, after, scratch).run(result);
}

}  // namespace
}  // namespace quire::gemm
