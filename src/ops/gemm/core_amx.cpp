// The AMX core. Weights are the A operand: a tile is 16 weight rows by 32 columns, in the order of the file,
// so BF16 tiles are loaded straight from the mapping. Tokens are the B operand, packed once per call as pairs
// [K/32][16 pairs][tokens][2]. C is a tile of 16 weight rows by up to 16 tokens in float32: one tdpbf16ps per
// 32 columns in ascending order, whatever the number of tokens. C goes through memory between chunks of K,
// exactly.
//
// Up to 16 tokens take the path of stream_amx.h. Above, a block of panels shares each chunk of the tokens,
// which stays in the second-level cache, and a panel's chunk of decoded weights meets all token tiles from
// the first-level cache, two by two tiles at a time.
#include <immintrin.h>

#include <cstring>

#include "ops/gemm/core.h"
#include "ops/gemm/simd_avx512.h"
#include "ops/gemm/stream_amx.h"

namespace quire::gemm {
namespace {

constexpr int64_t kBlockSteps = 16;  // tiles of K decoded at a time for many tokens
constexpr int64_t kBlockTiles = 32;  // token tiles that share decoded weights

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

int64_t scratch_bytes(int64_t panels, int64_t tokens, int64_t) {
  // For experts `tokens` is the most that one may get: the others may have few.
  if (tokens <= kTileTokens) return kStreamScratch;
  const int64_t tiles = (tokens + 15) / 16;
  const int64_t c = (tiles < kBlockTiles ? tiles : kBlockTiles) * panels * 2;
  const int64_t block = (2 * kBlockSteps + c) * kTileBytes;
  return block > kStreamScratch ? block : kStreamScratch;
}

// Columns [begin, begin + count) of a row tile, decoded to tiles.
Tiles decoded_tiles(const RowTile& r, int64_t begin, int64_t count, std::byte* scratch) {
  decoder_of(r.type)(r.first, r.row_bytes, r.rows, begin, count, reinterpret_cast<uint16_t*>(scratch), {});
  return {scratch, 64, kTileBytes};
}

// C (2 row tiles by 1 or 2 token tiles, 512 floats for each token tile) += A B over `steps` tiles; token
// tiles are b_next bytes apart. C is tiles 0 and 1 for the first token tile, 2 and 3 for the second. `fresh`:
// C starts at zero.
//
// A stays in the first-level cache, B passes through it once: loads that say so (tileloaddt1) do not push A
// out. C is worth a prefetch, because the products wait for it (docs/kernels-cpu.md).
template <bool kTwo>
void multiply_into(float* c, const float* next_c, bool fresh, const Tiles& a0, const Tiles& a1,
                   const std::byte* b, int64_t b_next, int64_t steps) {
  if (fresh) {
    _tile_zero(0);
    _tile_zero(1);
    if (kTwo) _tile_zero(2);
    if (kTwo) _tile_zero(3);
  } else {
    _tile_loadd(0, c, 64);
    _tile_loadd(1, c + 256, 64);
    if (kTwo) _tile_loadd(2, c + 512, 64);
    if (kTwo) _tile_loadd(3, c + 768, 64);
  }
  constexpr int64_t kFloats = (kTwo ? 1024 : 512) / kBlockSteps;  // of C asked for in a step
  for (int64_t s = 0; s < steps; ++s) {
    _tile_stream_loadd(6, b + s * kTileBytes, 64);
    if (kTwo) _tile_stream_loadd(7, b + b_next + s * kTileBytes, 64);
    _tile_loadd(4, a0.at + s * kTileBytes, 64);
    _tile_loadd(5, a1.at + s * kTileBytes, 64);
    for (int64_t i = 0; i < kFloats; i += 16)
      _mm_prefetch(reinterpret_cast<const char*>(next_c + s * kFloats + i), _MM_HINT_T0);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 5, 6);
    if (kTwo) _tile_dpbf16ps(2, 4, 7);
    if (kTwo) _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, c, 64);
  _tile_stored(1, c + 256, 64);
  if (kTwo) _tile_stored(2, c + 512, 64);
  if (kTwo) _tile_stored(3, c + 768, 64);
}

// More than 16 tokens: panel_of(p) for the panels of a block; result(p, token tile, C of the first row tile,
// C of the second).
template <class PanelOf, class Result>
void block_panels(int64_t count, PanelOf&& panel_of, const Packed& x, std::byte* scratch, Result&& result) {
  constexpr int64_t kChunk = kBlockSteps * 32;
  std::byte* const decoded = scratch;
  float* const c_tiles = reinterpret_cast<float*>(scratch + 2 * kBlockSteps * kTileBytes);
  for (int64_t first = 0; first < x.tiles(); first += kBlockTiles) {
    const int64_t tiles = x.tiles() - first < kBlockTiles ? x.tiles() - first : kBlockTiles;
    for (int64_t k = 0; k < x.cols; k += kChunk) {
      const int64_t cols = x.cols - k < kChunk ? x.cols - k : kChunk;
      const std::byte* const b = x.data + first * tile_stride(x) + k / 32 * kTileBytes;
      for (int64_t p = 0; p < count; ++p) {
        const Panel now = panel_of(p);
        const Tiles a0 = decoded_tiles(now[0], k, cols, decoded);
        const Tiles a1 = decoded_tiles(now[1], k, cols, decoded + kBlockSteps * kTileBytes);
        for (int64_t t = 0; t < tiles; t += 2) {
          float* const c = c_tiles + (p * tiles + t) * 512;
          const float* const next_c = c + (t + 1 < tiles ? 1024 : 512);  // also from panel to panel
          const std::byte* const bt = b + t * tile_stride(x);
          if (t + 1 < tiles)
            multiply_into<true>(c, next_c, k == 0, a0, a1, bt, tile_stride(x), steps_of(cols));
          else
            multiply_into<false>(c, next_c, k == 0, a0, a1, bt, 0, steps_of(cols));
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

// ---- What becomes of C: rows are weights (row n of the output), columns are tokens, as many as a B tile
// has.

// Whether results go by token: 16 rows of one token are then one vector, a gathered column of C.
bool by_token(const Packed& x) {
  return x.rows <= 4;
}
__m512 column(const float* c, int64_t t, int width) {
  const __m512i rows = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  if (width == 1) return _mm512_load_ps(c);
  return _mm512_i32gather_ps(_mm512_mullo_epi32(rows, _mm512_set1_epi32(width)), c + t, 4);
}

void store_tile(const float* c, int64_t tile, int64_t n, int64_t rows, const Packed& x, float scale,
                const Store& out) {
  const int64_t first = tile * kTileTokens, left = x.rows - first;
  const int64_t tokens = left < kTileTokens ? left : kTileTokens;
  const int width = width_of(x.rows);
  __m512i v[16];
  if (by_token(x)) {
    for (int64_t t = 0; t < tokens; ++t) v[t] = _mm512_castps_si512(column(c, t, width));
  } else {
    for (int i = 0; i < 16; ++i) v[i] = _mm512_loadu_si512(c + i * width);
    transpose16(v);
  }
  store_rows(out, first, tokens, n, first_lanes(rows), v, scale);
}

void project(const ProjectJob& job, std::byte* scratch) {
  const Weight& w = *job.w;
  const float scale = w.scale == nullptr ? 1.0f : w.scale[job.expert];
  configure(width_of(job.x->rows));
  const auto panel_of = [&](int64_t p) {
    const int64_t row = job.row + p * kPanelRows;
    const RowTile r(w, job.expert, row);
    // Without a second tile the first is taken twice: that does no harm.
    return Panel{r, row + 16 < w.rows ? RowTile(w, job.expert, row + 16) : r};
  };
  const auto result = [&](int64_t p, int64_t tile, const float* c0, const float* c1) {
    const int64_t row = job.row + p * kPanelRows, left = w.rows - row;
    store_tile(c0, tile, row, left, *job.x, scale, *job.out);
    if (left > 16) store_tile(c1, tile, row + 16, left - 16, *job.x, scale, *job.out);
  };
  if (job.x->tiles() > 1) return block_panels(job.panels, panel_of, *job.x, scratch, result);
  const auto stored = [&](int64_t p, const float* c0, const float* c1) { result(p, 0, c0, c1); };
  stream_panels({job.panels, job.x->data, job.x->cols, width_of(job.x->rows), job.ahead, scratch}, panel_of,
                stored);
}

// SiLU(gate) * up of 16 rows as bf16 in the packed form of mid, where rows in pairs are already pairs of K.
void store_swiglu(const SwigluJob& job, int64_t row, int64_t tile, const float* gate, const float* up) {
  const Packed& mid = *job.mid;
  const int width = width_of(mid.rows);
  const int64_t left = job.gate->rows - row;
  std::byte* const to = mid.data + tile * tile_stride(mid) + row / 32 * 64 * width + row % 32 / 2 * 4 * width;
  const __m512 gate_scale = _mm512_set1_ps(job.gate->scale == nullptr ? 1.0f : job.gate->scale[job.expert]);
  const __m512 up_scale = _mm512_set1_ps(job.up->scale == nullptr ? 1.0f : job.up->scale[job.expert]);
  const auto product = [&](__m512 g, __m512 u, __m512 gate_bias, __m512 up_bias) {
    g = _mm512_mul_ps(g, gate_scale);
    u = _mm512_mul_ps(u, up_scale);
    if (job.gate_bias != nullptr) g = _mm512_add_ps(g, gate_bias);
    if (job.up_bias != nullptr) u = _mm512_add_ps(u, up_bias);
    return (__m256i)_mm512_cvtneps_pbh(_mm512_mul_ps(silu16(g), u));
  };
  if (by_token(mid)) {
    const __mmask16 mask = first_lanes(left);
    const auto bias = [&](const float* b) {
      return b == nullptr || left <= 0 ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(mask, b + row);
    };
    const __m512 gate_bias = bias(job.gate_bias), up_bias = bias(job.up_bias);
    for (int64_t t = 0; t < mid.rows; ++t) {
      __m256i v = _mm256_setzero_si256();
      if (left > 0)
        v = _mm256_maskz_mov_epi16(mask,
                                   product(column(gate, t, width), column(up, t, width), gate_bias, up_bias));
      alignas(32) uint32_t pairs[8];
      _mm256_store_si256(reinterpret_cast<__m256i*>(pairs), v);
      for (int p = 0; p < 8; ++p) std::memcpy(to + (p * width + t) * 4, pairs + p, 4);
    }
    for (int64_t t = mid.rows; t < width; ++t)
      for (int p = 0; p < 8; ++p) std::memset(to + (p * width + t) * 4, 0, 4);
    return;
  }
  const auto row_product = [&](int64_t i) {  // of row i for 16 tokens, as bf16 in the low halves
    if (i >= left) return _mm512_setzero_si512();
    const auto bias = [&](const float* b) { return _mm512_set1_ps(b == nullptr ? 0.0f : b[row + i]); };
    return _mm512_cvtepu16_epi32(product(_mm512_loadu_ps(gate + i * width), _mm512_loadu_ps(up + i * width),
                                         bias(job.gate_bias), bias(job.up_bias)));
  };
  for (int64_t i = 0; i < 16; i += 2) {
    const __m512i pair = _mm512_or_si512(row_product(i), _mm512_slli_epi32(row_product(i + 1), 16));
    _mm512_mask_storeu_epi32(to + i / 2 * 4 * width, first_lanes(width), pair);
  }
}

void swiglu(const SwigluJob& job, std::byte* scratch) {
  configure(width_of(job.x->rows));
  // The last block of 32 columns may be half empty; its rows past F become zeros.
  const int64_t real = job.gate->rows - job.row;
  const int64_t count = job.units < (real + 15) / 16 ? job.units : (real + 15) / 16;
  const auto panel_of = [&](int64_t p) {
    const int64_t row = job.row + p * kPairRows;
    return Panel{RowTile(*job.gate, job.expert, row), RowTile(*job.up, job.expert, row)};
  };
  const auto result = [&](int64_t p, int64_t tile, const float* c0, const float* c1) {
    store_swiglu(job, job.row + p * kPairRows, tile, c0, c1);
  };
  if (job.x->tiles() > 1) {
    block_panels(count, panel_of, *job.x, scratch, result);
  } else if (count > 0) {
    const auto stored = [&](int64_t p, const float* c0, const float* c1) { result(p, 0, c0, c1); };
    stream_panels({count, job.x->data, job.x->cols, width_of(job.x->rows), job.ahead, scratch}, panel_of,
                  stored);
  }
  for (int64_t p = count; p < job.units; ++p)
    for (int64_t tile = 0; tile < job.mid->tiles(); ++tile)
      store_swiglu(job, job.row + p * kPairRows, tile, nullptr, nullptr);
}

}  // namespace

const Core kAmxCore = {packed_bytes, pack, in_place, scratch_bytes, project, swiglu, finish};

}  // namespace quire::gemm
