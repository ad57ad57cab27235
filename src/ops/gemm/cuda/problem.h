// A product of packed weights with rows of tokens, as the kernels of it are launched. No CUDA headers: what takes a
// product is chosen, and tested, without them.
#pragma once

#include <cstdint>

#include "ops/gemm/activation.h"
#include "ops/gemm/cuda/packed.h"

struct __nv_bfloat16;  // cuda_bf16.h

namespace quire::gemm {

inline constexpr int kMaxParts = 8;
inline constexpr int kTileRowTiles = 8;  // row tiles (of 16 rows of weights) of a tile of work

enum class Out : uint8_t {
  kBf16,
  kF32,
  kAddF32,  // y += result
};

// One matrix of a launch. Where its results go:
//   not paired   y[row, n] for n < rows; bias [rows] or null
//   paired       y[row, n] = bf16 of gated(g, u) with g = gate, u = up of output n; bias, bias2 theirs
// Pointers are to device memory. What Product::add() says it fills in follows from the weight.
struct Part {
  const uint8_t* weight = nullptr;  // filled in
  const float* scale = nullptr;     // [experts], null for 1; of the gate if paired
  const float* scale2 = nullptr;    // of the up matrices
  const float* bias = nullptr;      // [experts, rows], null for 0
  const float* bias2 = nullptr;
  void* y = nullptr;                // aligned to its element
  int64_t y_stride = 0;             // elements from row to row
  int64_t expert_bytes = 0;         // filled in
  int32_t row_tiles = 0, rows = 0;  // filled in: of one expert
  Out out = Out::kBf16;
};

// Rows may be sorted by expert (`offsets`). Sorted position i, with offsets[e] <= i < offsets[e + 1], is multiplied by
// expert e; it reads row x_rows[i] of x and writes row y_rows[i] of y. Positions from offsets[experts] on are not
// touched. Each row of y at most once.
struct Problem {
  Part part[kMaxParts];
  const __nv_bfloat16* x = nullptr;  // device [*, cols], rows aligned to 16 bytes
  int64_t x_stride = 0;              // elements from row to row, a multiple of 8
  // In device memory. offsets [experts + 1], null: a dense product, all rows for expert 0. x_rows null: i, as tiles
  // need it. y_rows null: i.
  const int32_t *offsets = nullptr, *x_rows = nullptr, *y_rows = nullptr;
  // Stream: offsets, x_rows and y_rows were there before the kernel before this one began, which is grouped as well.
  bool sorted_early = false;
  int32_t part_count = 0, experts = 0;
  int32_t rows = 0;       // dense: of x and y. Sorted by expert: bound on offsets[experts], for choosing tiles only
  int32_t most_rows = 0;  // no expert has more
  int32_t cols = 0, col_tiles = 0, k_slice_tiles = 0, k_slices = 0;
  int32_t all_row_tiles = 0;  // of all parts
  bool paired = false;
  GateActivation activation = GateActivation::kSilu;  // paired
};

// Blocks of threads among which fewer than 2^31 units are dealt out: `together` on each multiprocessor where there is
// work enough. Where K is not sliced no share is less than a whole tile, so that a tile is cut once at most.
constexpr int32_t dealt_blocks(int64_t tiles, int32_t k_slices, int32_t multiprocessors, int32_t together) {
  const int64_t most = k_slices > 1 ? tiles * k_slices : tiles;
  if (most >= int64_t{together} * multiprocessors) return together * multiprocessors;
  if (k_slices > 1) return static_cast<int32_t>(most);
  if (most >= multiprocessors) return multiprocessors;
  return static_cast<int32_t>(tiles * 2 / 3 > 0 ? tiles * 2 / 3 : 1);
}

}  // namespace quire::gemm
