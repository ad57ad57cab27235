// The AMX core. Weights are the A operand: a tile is 16 weight rows by 32 columns, in the order of the file,
// so BF16 tiles are loaded straight from the mapping. Tokens are the B operand, packed once per call as pairs
// [K/32][16 pairs][tokens][2]. C is a tile of 16 weight rows by up to 16 tokens in float32: one tdpbf16ps per
// 32 columns in ascending order, whatever the number of tokens. C goes through memory between chunks of K,
// exactly.
//
// Up to 16 tokens the rows of a panel are decoded one after the other, so that weights are read in the order
// of their addresses: the prefetcher of the second-level cache follows that (and only that), and one core
// reads three times as fast as with chunks of all rows in turn. Products of one panel and decoding of the
// next are interleaved. Above 16 tokens, a block of panels shares each chunk of the tokens, which stays in
// the second-level cache, and a panel's chunk of decoded weights meets all token tiles from the first-level
// cache.
//
// Two C tiles and one register each for A and B. The usual two by two tiles are as fast on a quiet machine
// (28 cycles a product in this loop, 18 being the peak), but on a host whose other hyperthreads are busy they
// fall to 97, this shape to 45 (Sapphire Rapids; docs/kernels-cpu.md).
#include <immintrin.h>

#include <tuple>
#include <utility>

#include "ops/gemm/core.h"
#include "ops/gemm/decode_avx512.h"
#include "ops/gemm/simd_avx512.h"

namespace quire::gemm {
namespace {

constexpr int64_t kTileBytes = 1024;
constexpr int64_t kStreamCols = 2048;  // columns of a row decoded at a time for few tokens
constexpr int64_t kAheadBytes = 3072;  // what is asked for lies this far ahead, in whole rows
constexpr int64_t kStreamPad = 64;     // keeps the decoded rows of a panel out of each other's cache sets
constexpr int64_t kBlockSteps = 8;     // tiles of K decoded at a time for many tokens
constexpr int64_t kBlockTiles = 32;    // token tiles that share decoded weights

int64_t steps_of(int64_t cols) {
  return (cols + 31) / 32;
}
// Columns of a B tile: few tokens get narrow tiles, so that one token is its own packed form and fewer bytes
// pass through the caches.
int width_of(int64_t rows) {
  return rows <= 1 ? 1 : rows <= 2 ? 2 : rows <= 4 ? 4 : rows <= 8 ? 8 : 16;
}
int64_t tile_stride(const Packed& x) {  // bytes of one tile of 16 tokens over all of K
  return steps_of(x.cols) * 64 * width_of(x.rows);
}

// ---- Tile configuration: tiles 0..3 are C, 4 and 5 are A, 6 and 7 are B.

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t bytes_per_row[16] = {};
  uint8_t rows[16] = {};
};

thread_local int configured_width = 0;

void configure(int width) {
  if (configured_width == width) return;
  TileConfig c;
  for (int t = 0; t < 8; ++t) {
    c.rows[t] = 16;
    c.bytes_per_row[t] = static_cast<uint16_t>(t == 4 || t == 5 ? 64 : 4 * width);
  }
  asm volatile("" : : "m"(c) : "memory");  // GCC 12 does not see that the next line reads all of c
  _tile_loadconfig(&c);
  configured_width = width;
}

void finish() {
  if (configured_width == 0) return;
  _tile_release();
  configured_width = 0;
}

// ---- Packing

int64_t packed_bytes(int64_t rows, int64_t cols) {
  return (rows + 15) / 16 * steps_of(cols) * 64 * width_of(rows);
}

// 32 values of a row as bf16, zeros from `count` on.
__m512i load32(const Tensor& x, int64_t row, int64_t col, int64_t count) {
  const __mmask32 mask = count >= 32 ? ~0u : (1u << count) - 1u;
  const int64_t at = row * x.stride[0] + col;
  if (x.dtype == DType::kBF16)
    return _mm512_maskz_loadu_epi16(mask, static_cast<const uint16_t*>(x.data) + at);
  const float* f = static_cast<const float*>(x.data) + at;
  return (__m512i)_mm512_cvtne2ps_pbh(_mm512_maskz_loadu_ps(static_cast<__mmask16>(mask >> 16), f + 16),
                                      _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), f));
}

void pack(const Tensor& x, const int32_t* row_of, int64_t tile, const Packed& to) {
  const int width = width_of(to.rows);
  const int64_t first = tile * kTileTokens, left = to.rows - first;
  const int64_t tokens = left < kTileTokens ? left : kTileTokens;
  std::byte* out = to.data + tile * tile_stride(to);
  for (int64_t k = 0; k < to.cols; k += 32, out += 64 * width) {
    __m512i v[16];
    for (int64_t t = 0; t < 16; ++t) {
      const int64_t row = t >= tokens ? 0 : row_of == nullptr ? first + t : row_of[first + t];
      v[t] = t < tokens ? load32(x, row, k, to.cols - k) : _mm512_setzero_si512();
    }
    transpose16(v);
    for (int p = 0; p < 16; ++p) _mm512_mask_storeu_epi32(out + p * 4 * width, first_lanes(width), v[p]);
  }
}

bool in_place(const Tensor& x) {
  return x.dim(0) == 1 && x.dtype == DType::kBF16 && x.dim(1) % 32 == 0;
}

// ---- Panels

// 16 rows of a weight, or what is left of them.
struct RowTile {
  DecodeTiles decode = nullptr;
  const std::byte* first = nullptr;
  int64_t row_bytes = 0;
  int rows = 0;
  bool direct = false;  // tiles can be loaded from the file's bytes

  RowTile() = default;
  RowTile(const Weight& w, int64_t expert, int64_t row)
      : decode(find_decoder(w.dtype)),
        first(w.row(row, expert)),
        row_bytes(w.row_bytes()),
        rows(static_cast<int>(w.rows - row < 16 ? w.rows - row : 16)),
        direct(w.dtype == DType::kBF16 && rows == 16) {}
};

// Decoded rows of a panel for few tokens, bytes from row to row and all of it.
int64_t stream_stride(int64_t cols) {
  return (cols < kStreamCols ? steps_of(cols) * 64 : kStreamCols * 2) + kStreamPad;
}
int64_t stream_bytes(int64_t cols) {
  return kPanelRows * stream_stride(cols);
}

int64_t scratch_bytes(int64_t panels, int64_t tokens, int64_t cols) {
  // For experts `tokens` is the most that one may get: the others may have few.
  const int64_t stream = 2 * kTileBytes + 2 * stream_bytes(cols);
  if (tokens <= kTileTokens) return stream;
  const int64_t tiles = (tokens + 15) / 16;
  const int64_t c = (tiles < kBlockTiles ? tiles : kBlockTiles) * panels * 2;
  const int64_t block = (2 * kBlockSteps + c) * kTileBytes;
  return block > stream ? block : stream;
}

// Where the A tiles of a row tile are found: `stride` bytes from row to row, `step` from tile to tile.
struct Tiles {
  const std::byte* at;
  int64_t stride;
  int64_t step;
};

// Columns [begin, begin + count) of a row tile, decoded to tiles.
Tiles decoded_tiles(const RowTile& r, int64_t begin, int64_t count, std::byte* scratch) {
  r.decode(r.first, r.row_bytes, r.rows, begin, count, reinterpret_cast<uint16_t*>(scratch), {});
  return {scratch, 64, kTileBytes};
}

Tiles at_step(const Tiles& t, int64_t s) {
  return {t.at + s * t.step, t.stride, t.step};
}

// C (2 row tiles) += A B over `steps` tiles. (Asking for B ahead of time costs more than it gains.)
inline void multiply(const Tiles& a0, const Tiles& a1, const std::byte* b, int64_t b_step, int64_t steps) {
  const size_t b_stride = static_cast<size_t>(b_step / 16);
  for (int64_t s = 0; s < steps; ++s) {
    _tile_loadd(6, b + s * b_step, b_stride);
    _tile_loadd(4, a0.at + s * a0.step, static_cast<size_t>(a0.stride));
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(4, a1.at + s * a1.step, static_cast<size_t>(a1.stride));
    _tile_dpbf16ps(1, 4, 6);
  }
}

// A piece of a panel for few tokens: columns [k, k + count) of its two row tiles.
struct Piece {
  RowTile r0, r1;
  int64_t panel = 0, k = 0, count = 0;
  std::byte* decoded = nullptr;  // 32 rows, `stride` bytes apart
  int64_t stride = 0;

  bool direct() const { return r0.direct && r1.direct && count % 32 == 0; }
  Tiles tiles(const RowTile& r, int half) const {
    if (direct()) return {r.first + k * 2, r.row_bytes, 64};
    return {decoded + half * 16 * stride, stride, 64};
  }
  // Decodes one of the 32 rows, if it exists, and asks for one some way ahead: two streams, which cross pages
  // where the hardware's prefetcher stops, hide more of the page walks than one.
  void decode_row(int64_t i, int64_t cols, int64_t panel_rows) const {
    const RowTile& r = i % 2 == 0 ? r0 : r1;
    const int64_t half = i % 2, row = i / 2;
    if (row >= r.rows) return;
    const std::byte* const piece = r.first + r.row_bytes * k / cols;
    const int64_t bytes = r.row_bytes * count / cols;
    const int64_t later = row + 1 + kAheadBytes / bytes;
    const std::byte* const ahead = piece + (later < 16 ? later : later - 16 + panel_rows) * r.row_bytes;
    for (int64_t b = 0; b < bytes; b += 64)
      _mm_prefetch(reinterpret_cast<const char*>(ahead + b), _MM_HINT_T0);
    r.decode(r.first + row * r.row_bytes, r.row_bytes, 1, k, count,
             reinterpret_cast<uint16_t*>(decoded + (half * 16 + row) * stride), {0, 32});
  }
};

// Up to 16 tokens: the weights stream by once, the pieces of all panels one after the other. Row by row the
// next piece is decoded between the products of the current one, so that tile loads do not wait for stores
// and the memory never rests. `panel_rows` is the distance of a row tile's rows from panel to panel.
// row_tiles(panel) gives a panel's row tiles; result(panel, token tile, C of the first, C of the second).
template <class RowTiles, class Result>
void stream_panels(int64_t panels, int64_t panel_rows, RowTiles&& row_tiles, const Packed& x,
                   std::byte* scratch, Result&& result) {
  const int64_t b_step = 64 * width_of(x.rows);
  const int64_t pieces = (x.cols + kStreamCols - 1) / kStreamCols, all = panels * pieces;
  float* const c = reinterpret_cast<float*>(scratch);
  const auto piece = [&](int64_t i) {
    Piece p;
    p.panel = i / pieces;
    std::tie(p.r0, p.r1) = row_tiles(p.panel);
    p.k = i % pieces * kStreamCols;
    p.count = x.cols - p.k < kStreamCols ? x.cols - p.k : kStreamCols;
    p.stride = stream_stride(x.cols);
    p.decoded = scratch + 2 * kTileBytes + i % 2 * stream_bytes(x.cols);
    return p;
  };
  Piece now = piece(0);
  if (!now.direct())
    for (int64_t r = 0; r < kPanelRows; ++r) now.decode_row(r, x.cols, panel_rows);
  for (int64_t i = 0; i < all; ++i) {
    const bool more = i + 1 < all;
    const Piece next = more ? piece(i + 1) : now;
    const bool decode = more && !next.direct();
    if (now.k == 0) {
      _tile_zero(0);
      _tile_zero(1);
    }
    const Tiles a0 = now.tiles(now.r0, 0), a1 = now.tiles(now.r1, 1);
    const int64_t steps = steps_of(now.count);
    int64_t row = 0;
    for (int64_t s = 0; s < steps; ++s) {
      for (; decode && row * steps < s * kPanelRows; ++row) next.decode_row(row, x.cols, panel_rows);
      multiply(at_step(a0, s), at_step(a1, s), x.data + (now.k / 32 + s) * b_step, b_step, 1);
    }
    for (; decode && row < kPanelRows; ++row) next.decode_row(row, x.cols, panel_rows);
    if (now.k + now.count == x.cols) {
      _tile_stored(0, c, 64);
      _tile_stored(1, c + 256, 64);
      result(now.panel, int64_t{0}, c, c + 256);
    }
    now = next;
  }
}

// The panels of a block: `first` and `second` give the row tiles of panel p.
template <class RowTiles, class Result>
void block_panels(int64_t count, RowTiles&& row_tiles, const Packed& x, std::byte* scratch, Result&& result) {
  constexpr int64_t kStep = 64 * kTileTokens;
  std::byte* const decoded = scratch;
  float* const c_tiles = reinterpret_cast<float*>(scratch + 2 * kBlockSteps * kTileBytes);
  for (int64_t first = 0; first < x.tiles(); first += kBlockTiles) {
    const int64_t tiles = x.tiles() - first < kBlockTiles ? x.tiles() - first : kBlockTiles;
    for (int64_t k = 0; k < x.cols; k += kBlockSteps * 32) {
      const int64_t left = x.cols - k, cols = left < kBlockSteps * 32 ? left : kBlockSteps * 32;
      for (int64_t p = 0; p < count; ++p) {
        const auto [r0, r1] = row_tiles(p);
        const Tiles a0 = decoded_tiles(r0, k, cols, decoded);
        const Tiles a1 = decoded_tiles(r1, k, cols, decoded + kBlockSteps * kTileBytes);
        for (int64_t t = 0; t < tiles; ++t) {
          float* const c = c_tiles + (p * tiles + t) * 512;
          if (k == 0) {
            _tile_zero(0);
            _tile_zero(1);
          } else {
            _tile_loadd(0, c, 64);
            _tile_loadd(1, c + 256, 64);
          }
          multiply(a0, a1, x.data + (first + t) * tile_stride(x) + k / 32 * kStep, kStep, steps_of(cols));
          _tile_stored(0, c, 64);
          _tile_stored(1, c + 256, 64);
        }
      }
    }
    // Tile after tile, so that neighbouring panels write the same pages of y.
    for (int64_t t = 0; t < tiles; ++t)
      for (int64_t p = 0; p < count; ++p) {
        const float* const c = c_tiles + (p * tiles + t) * 512;
        result(p, first + t, c, c + 256);
      }
  }
}

// ---- What becomes of C

// c: rows are weights (row n of the output), columns are tokens.
void store_tile(const float* c, int64_t tile, int64_t n, int64_t rows, const Packed& x, float scale,
                const Store& out) {
  const __mmask16 mask = first_lanes(rows);
  const int64_t first = tile * kTileTokens, left = x.rows - first;
  if (left <= 4) {  // gathering a few columns is cheaper than transposing all
    const __m512i column = _mm512_mullo_epi32(
        _mm512_set1_epi32(16), _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
    for (int64_t t = 0; t < left; ++t)
      store16(out, first + t, n, mask, _mm512_i32gather_ps(column, c + t, 4), scale);
    return;
  }
  __m512i v[16];
  for (int i = 0; i < 16; ++i) v[i] = _mm512_load_si512(c + i * 16);
  transpose16(v);
  const int64_t tokens = left < kTileTokens ? left : kTileTokens;
  for (int64_t t = 0; t < tokens; ++t) store16(out, first + t, n, mask, _mm512_castsi512_ps(v[t]), scale);
}

void project(const ProjectJob& job, std::byte* scratch) {
  const Weight& w = *job.w;
  const float scale = w.scale == nullptr ? 1.0f : w.scale[job.expert];
  configure(width_of(job.x->rows));
  const auto row_tiles = [&](int64_t p) {
    const int64_t row = job.row + p * kPanelRows;
    const RowTile r(w, job.expert, row);
    // Without a second tile the first is taken twice: that does no harm.
    return std::pair(r, row + 16 < w.rows ? RowTile(w, job.expert, row + 16) : r);
  };
  const auto result = [&](int64_t p, int64_t tile, const float* c0, const float* c1) {
    const int64_t row = job.row + p * kPanelRows, left = w.rows - row;
    store_tile(c0, tile, row, left, *job.x, scale, *job.out);
    if (left > 16) store_tile(c1, tile, row + 16, left - 16, *job.x, scale, *job.out);
  };
  if (job.x->tiles() > 1) return block_panels(job.panels, row_tiles, *job.x, scratch, result);
  stream_panels(job.panels, kPanelRows, row_tiles, *job.x, scratch, result);
}

// Rows of gate and up in pairs are already the pairs of the packed form.
void store_swiglu(const SwigluJob& job, int64_t row, int64_t tile, const float* gate, const float* up) {
  const Packed& mid = *job.mid;
  const int width = width_of(mid.rows);
  const int64_t left = job.gate->rows - row;
  std::byte* const to = mid.data + tile * tile_stride(mid) + row / 32 * 64 * width + row % 32 / 2 * 4 * width;
  const float gate_scale = job.gate->scale == nullptr ? 1.0f : job.gate->scale[job.expert];
  const float up_scale = job.up->scale == nullptr ? 1.0f : job.up->scale[job.expert];
  const auto value = [&](const float* c, int64_t i, float scale, const float* bias) {
    const __m512 v = _mm512_mul_ps(_mm512_load_ps(c + i * 16), _mm512_set1_ps(scale));
    return bias == nullptr ? v : _mm512_add_ps(v, _mm512_set1_ps(bias[row + i]));
  };
  const auto product = [&](int64_t i) {  // of row i for 16 tokens, as bf16 in the low halves
    if (i >= left) return _mm512_setzero_si512();
    const __m512 p =
        _mm512_mul_ps(silu16(value(gate, i, gate_scale, job.gate_bias)), value(up, i, up_scale, job.up_bias));
    return _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(p));
  };
  for (int64_t i = 0; i < 16; i += 2) {
    const __m512i pair = _mm512_or_si512(product(i), _mm512_slli_epi32(product(i + 1), 16));
    _mm512_mask_storeu_epi32(to + i / 2 * 4 * width, first_lanes(width), pair);
  }
}

void swiglu(const SwigluJob& job, std::byte* scratch) {
  configure(width_of(job.x->rows));
  // The last block of 32 columns may be half empty; its rows past F become zeros.
  const int64_t real = job.gate->rows - job.row;
  const int64_t count = job.units < (real + 15) / 16 ? job.units : (real + 15) / 16;
  const auto row_tiles = [&](int64_t p) {
    const int64_t row = job.row + p * kPairRows;
    return std::pair(RowTile(*job.gate, job.expert, row), RowTile(*job.up, job.expert, row));
  };
  const auto result = [&](int64_t p, int64_t tile, const float* c0, const float* c1) {
    store_swiglu(job, job.row + p * kPairRows, tile, c0, c1);
  };
  if (job.x->tiles() > 1) {
    block_panels(count, row_tiles, *job.x, scratch, result);
  } else if (count > 0) {
    stream_panels(count, kPairRows, row_tiles, *job.x, scratch, result);
  }
  for (int64_t p = count; p < job.units; ++p)
    for (int64_t tile = 0; tile < job.mid->tiles(); ++tile)
      store_swiglu(job, job.row + p * kPairRows, tile, nullptr, nullptr);
}

}  // namespace

const Core kAmxCore = {packed_bytes, pack, in_place, scratch_bytes, project, swiglu, finish};

}  // namespace quire::gemm
