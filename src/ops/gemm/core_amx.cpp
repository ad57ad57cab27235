// The AMX core. Weights are the A operand: a tile is 16 weight rows by 32 columns, in the order of the file,
// so BF16 tiles are loaded straight from the mapping. Tokens are the B operand, packed once per call as pairs
// [K/32][16 pairs][tokens][2]. C is a tile of 16 weight rows by up to 16 tokens in float32: one tdpbf16ps per
// 32 columns in ascending order, whatever the number of tokens. C goes through memory between chunks of K,
// exactly.
//
// Up to 16 tokens take the path of stream_amx.h, more that of block_amx.h.
#include <immintrin.h>

#include <cstring>

#include "ops/gemm/block_amx.h"
#include "ops/gemm/core.h"
#include "ops/gemm/simd_avx512.h"
#include "ops/gemm/stream_amx.h"
#include "ops/simd/tiles_amx.h"

namespace quire::gemm {
namespace {

// Columns of a B tile: few tokens get narrow tiles, so that one token is its own packed form and fewer bytes
// pass through the caches.
int width_of(int64_t rows) {
  return rows <= 1 ? 1 : rows <= 2 ? 2 : rows <= 4 ? 4 : rows <= 8 ? 8 : 16;
}
int64_t tile_stride(const Packed& x) {  // bytes of one tile of 16 tokens over all of K
  return steps_of(x.cols) * 64 * width_of(x.rows);
}

// ---- Tile configuration: tiles 0..3 are C, 4 and 5 are A, 6 and 7 are B.

thread_local int configured_width = 0;

void configure(int width) {
  if (configured_width == width) return;
  simd::TileConfig c;
  for (int t = 0; t < 8; ++t) c.set(t, 16, t == 4 || t == 5 ? 64 : 4 * width);
  c.load();
  configured_width = width;
}

void finish() {
  _mm_sfence();  // results written past the caches come before whatever says that they are there
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
  if (x.dtype == DType::kBF16) return _mm512_maskz_loadu_epi16(mask, static_cast<const uint16_t*>(x.data) + at);
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
  const int64_t block = block_scratch_bytes(panels, (tokens + 15) / 16);
  return block > kStreamScratch ? block : kStreamScratch;
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
                const Epilogue& out) {
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

// Outputs of this size are written past the caches. They would push out the tokens, and a line that is
// written as a whole need not be read first; the next operator finds little of them in its caches either way.
constexpr int64_t kLargeOutput = int64_t{1} << 20;

// Two row tiles of 16 tokens as bf16: pairs of rows are words, so that one transposition serves both, and a
// token's 32 results are one line.
void store_pairs(const float* c, int64_t tile, int64_t n, int64_t rows, const Packed& x, float scale,
                 const Epilogue& out) {
  const int64_t first = tile * kTileTokens, left = x.rows - first;
  const int64_t tokens = left < kTileTokens ? left : kTileTokens;
  const __m512i together = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                            21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  const __m512 scales = _mm512_set1_ps(scale);
  const auto row = [&](int64_t i) {
    __m512 v = _mm512_mul_ps(_mm512_load_ps(c + i * 16), scales);
    if (out.bias != nullptr && i < rows) v = _mm512_add_ps(v, _mm512_set1_ps(out.bias[n + i]));
    return v;
  };
  __m512i v[16];
  for (int64_t i = 0; i < 16; ++i)
    v[i] = _mm512_permutexvar_epi16(together, (__m512i)_mm512_cvtne2ps_pbh(row(2 * i + 1), row(2 * i)));
  transpose16(v);
  const __mmask32 mask = rows >= 32 ? ~0u : (1u << rows) - 1u;
  uint16_t* const y = static_cast<uint16_t*>(out.y) + n - out.first;
  const bool past_caches = x.rows * out.stride * 2 >= kLargeOutput;
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t at = out.row_of == nullptr ? first + t : out.row_of[first + t];
    uint16_t* const to = y + at * out.stride;
    if (past_caches && mask == ~0u && reinterpret_cast<uintptr_t>(to) % 64 == 0)
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to), v[t]);
    else
      _mm512_mask_storeu_epi16(to, mask, v[t]);
  }
}

void project(const ProjectJob& job, std::byte* scratch) {
  const Weight& w = *job.w;
  const float scale = w.scale == nullptr ? 1.0f : w.scale[job.expert];
  const bool many = job.x->tiles() > 1;
  configure(width_of(job.x->rows));
  const auto panel_of = [&](int64_t p) {
    const int64_t row = job.row + p * kPanelRows;
    const RowTile r(w, job.expert, row);
    // Without a second tile the first is taken twice: that does no harm.
    return Panel{r, row + 16 < w.rows ? RowTile(w, job.expert, row + 16) : r};
  };
  const auto result = [&](int64_t p, int64_t tile, const float* c0, const float* c1) {
    const int64_t row = job.row + p * kPanelRows, left = w.rows - row;
    if (many && job.out->dtype == DType::kBF16)
      return store_pairs(c0, tile, row, left, *job.x, scale, *job.out);  // c1 follows c0
    store_tile(c0, tile, row, left, *job.x, scale, *job.out);
    if (left > 16) store_tile(c1, tile, row + 16, left - 16, *job.x, scale, *job.out);
  };
  if (many) return block_panels(job.panels, panel_of, *job.x, job.prefetch, scratch, result);
  const auto stored = [&](int64_t p, const float* c0, const float* c1) { result(p, 0, c0, c1); };
  stream_panels({job.panels, job.x->data, job.x->cols, width_of(job.x->rows), job.prefetch, scratch}, panel_of, stored);
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
    return (__m256i)_mm512_cvtneps_pbh(gated16(job.activation, g, u));
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
        v = _mm256_maskz_mov_epi16(mask, product(column(gate, t, width), column(up, t, width), gate_bias, up_bias));
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
    block_panels(count, panel_of, *job.x, job.prefetch, scratch, result);
  } else if (count > 0) {
    const auto stored = [&](int64_t p, const float* c0, const float* c1) { result(p, 0, c0, c1); };
    stream_panels({count, job.x->data, job.x->cols, width_of(job.x->rows), job.prefetch, scratch}, panel_of, stored);
  }
  for (int64_t p = count; p < job.units; ++p)
    for (int64_t tile = 0; tile < job.mid->tiles(); ++tile)
      store_swiglu(job, job.row + p * kPairRows, tile, nullptr, nullptr);
}

}  // namespace

const Core kAmxCore = {packed_bytes, pack, in_place, scratch_bytes, project, swiglu, finish};

}  // namespace quire::gemm
