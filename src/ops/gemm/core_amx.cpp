// The AMX core. Weights are the A operand: a tile is 16 weight rows by 32 columns, in the order of the file,
// so BF16 tiles are loaded straight from the mapping. Tokens are the B operand, packed once per call as pairs
// [K/32][16 pairs][tokens][2]. C is a tile of 16 weight rows by up to 16 tokens in float32: one tdpbf16ps per
// 32 columns in ascending order, whatever the number of tokens.
//
// Up to 32 tokens the panel is decoded in chunks that stay in the first-level cache while the weights stream
// from memory; above, the whole panel is decoded once and every pair of token tiles walks over it with two by
// two tiles of C in registers.
#include <immintrin.h>

#include <cstring>

#include "ops/gemm/core.h"
#include "ops/gemm/decode_avx512.h"
#include "ops/gemm/simd_avx512.h"

namespace quire::gemm {
namespace {

constexpr int64_t kTileBytes = 1024;
constexpr int64_t kChunkTiles = kDecodeChunk / 32;

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

  RowTile(const Weight& w, int64_t expert, int64_t row)
      : decode(find_decoder(w.dtype)),
        first(w.row(row, expert)),
        row_bytes(w.row_bytes()),
        rows(static_cast<int>(w.rows - row < 16 ? w.rows - row : 16)),
        direct(w.dtype == DType::kBF16 && rows == 16) {}
};

struct Scratch {
  explicit Scratch(std::byte* base) : c(reinterpret_cast<float*>(base)), decoded(base + 4 * kTileBytes) {}
  float* c;            // 4 tiles of results
  std::byte* decoded;  // tiles of the first row tile, then those of the second
};

int64_t scratch_bytes(int64_t max_cols) {
  const int64_t steps = steps_of(max_cols) < kChunkTiles ? kChunkTiles : steps_of(max_cols);
  return (4 + 2 * steps) * kTileBytes;
}

// Where the A tiles of a row tile are found: `stride` bytes from row to row, `step` from tile to tile.
struct Tiles {
  const std::byte* at;
  int64_t stride;
  int64_t step;
};

// Columns [begin, begin + count) of a row tile as tiles.
Tiles tiles_of(const RowTile& r, int64_t begin, int64_t count, bool may_be_direct, std::byte* scratch) {
  if (r.direct && may_be_direct && count % 32 == 0) return {r.first + begin * 2, r.row_bytes, 64};
  r.decode(r.first, r.row_bytes, r.rows, begin, count, reinterpret_cast<uint16_t*>(scratch));
  return {scratch, 64, kTileBytes};
}

// Asks for the bytes of a chunk some way ahead of the one in work: in the same rows or, past their end, in
// the rows of the next panel.
constexpr int64_t kAheadBytes = 1024;
void prefetch_ahead(const RowTile& r, int64_t begin_byte, int64_t count_bytes, int64_t panel_rows) {
  int64_t at = begin_byte + kAheadBytes;
  if (at >= r.row_bytes) at += (panel_rows - 1) * r.row_bytes;
  for (int i = 0; i < r.rows; ++i) {
    const char* p = reinterpret_cast<const char*>(r.first + i * r.row_bytes + at);
    for (int64_t b = 0; b < count_bytes; b += 64) _mm_prefetch(p + b, _MM_HINT_T0);
  }
}

// C (2 row tiles x kTokenTiles) += A B over `steps` tiles.
template <int kTokenTiles>
inline void multiply(const Tiles& a0, const Tiles& a1, const std::byte* b0, const std::byte* b1,
                     int64_t b_step, int64_t steps) {
  const size_t b_stride = static_cast<size_t>(b_step / 16);
  for (int64_t s = 0; s < steps; ++s) {
    _tile_loadd(6, b0 + s * b_step, b_stride);
    _tile_loadd(4, a0.at + s * a0.step, static_cast<size_t>(a0.stride));
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(5, a1.at + s * a1.step, static_cast<size_t>(a1.stride));
    _tile_dpbf16ps(1, 5, 6);
    if constexpr (kTokenTiles == 2) {
      _tile_loadd(7, b1 + s * b_step, b_stride);
      _tile_dpbf16ps(2, 4, 7);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
}

inline void zero_c() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

// Stores C and calls result(token tile, C of the first row tile, C of the second), rows of 16 floats.
template <int kTokenTiles, class Result>
inline void take_c(float* c, int64_t tile, Result&& result) {
  _tile_stored(0, c, 64);
  _tile_stored(1, c + 256, 64);
  if constexpr (kTokenTiles == 2) {
    _tile_stored(2, c + 512, 64);
    _tile_stored(3, c + 768, 64);
  }
  result(tile, c, c + 256);
  if constexpr (kTokenTiles == 2) result(tile + 1, c + 512, c + 768);
}

// Few tokens: the weights stream by once.
template <int kTokenTiles, class Result>
void stream_panel(const RowTile& r0, const RowTile& r1, int64_t panel_rows, const Packed& x, Scratch s,
                  Result&& result) {
  const int64_t b_step = 64 * width_of(x.rows);
  zero_c();
  for (int64_t k = 0; k < x.cols; k += kDecodeChunk) {
    const int64_t count = x.cols - k < kDecodeChunk ? x.cols - k : kDecodeChunk;
    const int64_t chunk_bytes = r0.row_bytes * kDecodeChunk / x.cols;
    prefetch_ahead(r0, r0.row_bytes * k / x.cols, chunk_bytes, panel_rows);
    prefetch_ahead(r1, r1.row_bytes * k / x.cols, chunk_bytes, panel_rows);
    const Tiles a0 = tiles_of(r0, k, count, true, s.decoded);
    const Tiles a1 = tiles_of(r1, k, count, true, s.decoded + kChunkTiles * kTileBytes);
    const std::byte* b0 = x.data + k / 32 * b_step;
    multiply<kTokenTiles>(a0, a1, b0, b0 + tile_stride(x), b_step, steps_of(count));
  }
  take_c<kTokenTiles>(s.c, 0, result);
}

// Many tokens: the panel is decoded once.
template <class Result>
void block_panel(const RowTile& r0, const RowTile& r1, const Packed& x, Scratch s, Result&& result) {
  const int64_t b_step = 64 * kTileTokens, steps = steps_of(x.cols);
  const Tiles a0 = tiles_of(r0, 0, x.cols, false, s.decoded);
  const Tiles a1 = tiles_of(r1, 0, x.cols, false, s.decoded + steps * kTileBytes);
  int64_t tile = 0;
  for (; tile + 2 <= x.tiles(); tile += 2) {
    const std::byte* b = x.data + tile * tile_stride(x);
    zero_c();
    multiply<2>(a0, a1, b, b + tile_stride(x), b_step, steps);
    take_c<2>(s.c, tile, result);
  }
  if (tile < x.tiles()) {
    zero_c();
    multiply<1>(a0, a1, x.data + tile * tile_stride(x), nullptr, b_step, steps);
    take_c<1>(s.c, tile, result);
  }
}

template <class Result>
void panel(const RowTile& r0, const RowTile& r1, int64_t panel_rows, const Packed& x, std::byte* scratch,
           Result&& result) {
  configure(width_of(x.rows));
  const Scratch s(scratch);
  if (x.tiles() == 1) return stream_panel<1>(r0, r1, panel_rows, x, s, result);
  if (x.tiles() == 2) return stream_panel<2>(r0, r1, panel_rows, x, s, result);
  block_panel(r0, r1, x, s, result);
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
  const int64_t left = w.rows - job.row;
  const RowTile r0(w, job.expert, job.row);
  const RowTile r1 = left > 16 ? RowTile(w, job.expert, job.row + 16) : r0;  // a second time does no harm
  const float scale = w.scale == nullptr ? 1.0f : w.scale[job.expert];
  panel(r0, r1, kPanelRows, *job.x, scratch, [&](int64_t tile, const float* c0, const float* c1) {
    store_tile(c0, tile, job.row, left, *job.x, scale, *job.out);
    if (left > 16) store_tile(c1, tile, job.row + 16, left - 16, *job.x, scale, *job.out);
  });
}

// Rows of gate and up in pairs are already the pairs of the packed form.
void swiglu(const SwigluJob& job, std::byte* scratch) {
  const Packed& mid = *job.mid;
  const int width = width_of(mid.rows);
  const int64_t left = job.gate->rows - job.row;
  std::byte* const to = mid.data + job.row / 32 * 64 * width + job.row % 32 / 2 * 4 * width;
  if (left <= 0) {  // the padding behind the last column
    for (int64_t tile = 0; tile < mid.tiles(); ++tile)
      std::memset(to + tile * tile_stride(mid), 0, static_cast<size_t>(8 * 4 * width));
    return;
  }
  const float gate_scale = job.gate->scale == nullptr ? 1.0f : job.gate->scale[job.expert];
  const float up_scale = job.up->scale == nullptr ? 1.0f : job.up->scale[job.expert];
  const auto row = [&](const float* c, int64_t i, float scale, const float* bias) {
    const __m512 v = _mm512_mul_ps(_mm512_load_ps(c + i * 16), _mm512_set1_ps(scale));
    return bias == nullptr ? v : _mm512_add_ps(v, _mm512_set1_ps(bias[job.row + i]));
  };
  const RowTile g(*job.gate, job.expert, job.row), u(*job.up, job.expert, job.row);
  panel(g, u, kPairRows, *job.x, scratch, [&](int64_t tile, const float* c0, const float* c1) {
    const auto product = [&](int64_t i) {
      if (i >= left) return _mm512_setzero_si512();
      const __m512 p =
          _mm512_mul_ps(silu16(row(c0, i, gate_scale, job.gate_bias)), row(c1, i, up_scale, job.up_bias));
      return _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(p));
    };
    for (int64_t i = 0; i < 16; i += 2) {
      const __m512i pair = _mm512_or_si512(product(i), _mm512_slli_epi32(product(i + 1), 16));
      _mm512_mask_storeu_epi32(to + tile * tile_stride(mid) + i / 2 * 4 * width, first_lanes(width), pair);
    }
  });
}

}  // namespace

const Core kAmxCore = {packed_bytes, pack, in_place, scratch_bytes, project, swiglu, finish};

}  // namespace quire::gemm
