// Which family of kernels takes a product, and in what tiles: what is expected to be fastest, by the costs of the card
// (ops/cuda/card_costs.h). The bits are the same whatever is chosen. No CUDA headers.
#pragma once

#include <algorithm>
#include <string_view>

#include "ops/cuda/card_costs.h"
#include "ops/gemm/cuda/paths.h"
#include "ops/gemm/cuda/problem.h"

namespace quire::gemm {

constexpr int64_t blocks_of(int64_t count, int64_t each) {
  return (count + each - 1) / each;
}

// A product as operators ask for it: a Problem, and what is asked of its launch.
struct Product {
  Product() = default;
  // Of so many rows of x.
  Product(const __nv_bfloat16* x, int64_t x_stride, int32_t rows) {
    problem.x = x;
    problem.x_stride = x_stride;
    problem.rows = problem.most_rows = rows;
  }

  Problem problem;
  TileFormat format = TileFormat::kBf16;  // of all parts
  Path path = Path::kAuto;
  int32_t tile_rows = 0;  // tiles: rows of x in one, 0 for choosing; for tests and measuring
  // Stores the sum of each K slice, [K slices][rows] rows of y, instead of adding them up: for weights with few rows
  // (routers), whose reader adds them, in ascending order, to the bits that it would find otherwise. Dense, one part,
  // no scale or bias, Out::kF32; a kernel of its own (k_slices.cuh), whatever the path.
  bool apart = false;
  // Whether the launch has room for sums; without, kAuto neither slices nor deals out.
  bool room = false;
  float* sums = nullptr;    // device: sliced_floats() of room, aligned to 256 bytes, where there is any
  std::string_view misfit;  // why add() refused a part; empty: it did not

  // A matrix, all of the same format, columns, K slices, experts and pairedness, and no more than kMaxParts of them;
  // exactly one if rows are sorted by expert.
  void add(const PackedWeight& weight, Part part);

  bool grouped() const { return problem.offsets != nullptr; }
  // Blocks of kTileRowTiles row tiles, of all parts.
  int64_t row_blocks() const;
};

// How many rows of x a tile of a format can have on a card: with totals of several K slices in registers, and without.
struct TileLimits {
  int multiprocessors = 0;
  int32_t with_totals = 0, without = 0;
  bool deals = false;       // work can be dealt out evenly
  int32_t narrow_rows = 0;  // tiles of up to so many rows of x run two at a time on a multiprocessor

  int32_t most_rows(const Problem& p, bool sliced) const {
    return p.k_slices > 1 && (!sliced || deals) ? with_totals : without;
  }
};

// What tiles of so many rows of x cost, as counts of what the card's costs are per one of.
struct TileWork {
  int64_t columns = 0;       // rows of x in a column tile, of the multiprocessor that has most
  int64_t column_tiles = 0;  // column_overhead
  int64_t narrow_pairs = 0;  // narrow_overhead: of column tiles
  int64_t tiles = 0;         // tile_overhead
  int64_t hand_overs = 0;    // hand_over
  int64_t added_floats = 0;  // sliced_floats_per_column

  // In columns' time.
  int64_t cost(const cuda::ProductCosts& c) const {
    return columns + column_tiles * c.column_overhead + narrow_pairs * c.narrow_overhead + tiles * c.tile_overhead +
           hand_overs * c.hand_over + added_floats / c.sliced_floats_per_column;
  }
};
// Of a dense product by kTile, kDealt or kSliced.
TileWork tile_work(const Product& p, Path path, int32_t rows, const TileLimits& limits);

struct TileChoice {
  int32_t rows = 32;  // of x in a tile
  bool dealt = false;
  int64_t cost = INT64_MAX;  // in columns' time (ProductCosts::column_ns)
};
// `sliced`: each K slice in tiles of its own. `room`: for sums.
TileChoice choose_tiles(const Product& p, const TileLimits& limits, const cuda::ProductCosts& costs, bool sliced,
                        bool room);

// Whether a sweep is to be faster than the others, if there is one.
bool prefers_sweep(const Product& p, const TileLimits& limits, const cuda::ProductCosts& costs);
Path choose_but_sweep(const Product& p, const TileLimits& limits, const cuda::ProductCosts& costs);
// can_sweep(): whether there is one.
template <class CanSweep>
Path choose_path(const Product& p, const TileLimits& limits, const cuda::ProductCosts& costs, CanSweep&& can_sweep) {
  if (prefers_sweep(p, limits, costs) && can_sweep()) return Path::kSweep;
  return choose_but_sweep(p, limits, costs);
}

// Products of few row tiles over many columns: their K slices may be tiles of their own.
struct SlicedRoom {
  int64_t floats_per_row = 0;  // of x
  int32_t most_rows = 0;       // that may be sliced; 0: none
};
SlicedRoom sliced_room(const Product& p, const cuda::ProductCosts& costs);

}  // namespace quire::gemm
