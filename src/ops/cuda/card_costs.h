// What decides between CUDA kernels that all could run: limits and costs, measured or computed, by name and unit. Which
// kernel runs is a matter of time alone; limits of kernels are not here, but in their `fits`. No CUDA headers: `quire
// explain --costs` prints them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/cuda/limits.h"

namespace quire::cuda {

// Products of packed weights with rows of tokens (ops/gemm/cuda/gemm.h).
struct ProductCosts {
  // From how many rows on tiles are preferred to streams: they read tokens once for 128 rows of a weight. Weights of
  // few row tiles keep too few multiprocessors busy as tiles.
  int64_t stream_rows = 8;         // rows of x that streams take at most
  int64_t stream_rows_small = 32;  // the same, of weights with fewer than small_row_tiles
  int64_t small_row_tiles = 8 * 64;
  // Experts: rows of one, on average, from which on tiles are preferred; fewer where a matrix of one expert has at
  // least large_expert_tiles tiles of 16 x 64, beside which gathering tokens and beginning a tile cost little.
  int64_t grouped_tile_rows = 8, grouped_tile_rows_large = 4;
  int64_t large_expert_tiles = 8192;
  // Tiles of experts have 32, 64 or 128 rows of x below so many rows of one on average, and 256 from there on.
  int64_t grouped_rows_32 = 28, grouped_rows_64 = 48, grouped_rows_128 = 112;

  // Sweeps instead of streams: for weights with more column tiles (of 64) than sweep_col_tiles, or more than
  // sweep_col_tiles_many if there are at least many_row_tiles row tiles (of 16) for each multiprocessor.
  int64_t many_row_tiles = 16;
  int64_t sweep_col_tiles = 64, sweep_col_tiles_many = 32;
  // Rows of x that a sweep takes at most: of weights with few row tiles; of bf16; of 4-bit floats where tiles can be
  // dealt out; of all others.
  int64_t sweep_rows_few = 8, sweep_rows_bf16 = 8, sweep_rows_dealt = 8, sweep_rows = 32;

  // Tiles, in columns' time. A column tile of a tile costs its rows of x and column_overhead, a tile tile_overhead
  // besides.
  double column_ns = 2.0;        // nanoseconds that one is: of a row of x in a column tile
  int64_t column_overhead = 98;  // for weights and for decoding
  // The same of two narrow tiles that share a multiprocessor, together: most of it are instructions, of which that
  // issues so many and no more.
  int64_t narrow_overhead = 167;
  int64_t tile_overhead = 1100;  // what a tile does once
  // Dealing tiles out evenly: a kernel that clears flags, and the sums' way through the L2. Not for more blocks of
  // tokens than most_dealt_blocks, because what runs at the same time shares less.
  int64_t hand_over = 6700;
  int64_t most_dealt_blocks = 4;
  // K slices as tiles of their own: sums of so many floats are added up in the time of a column. Only for weights with
  // up to most_sliced_row_blocks blocks of 128 rows (half of a large GPU's multiprocessors), up to so many rows of x
  // and floats. From fewer rows of x on (least_sliced_rows_many) with more column tiles than sweep_col_tiles, where
  // there is no sweep: streams then find no room for whole rows of x.
  int64_t sliced_floats_per_column = 765;
  int64_t most_sliced_row_blocks = 64;
  int64_t least_sliced_rows = 9, least_sliced_rows_many = 2, most_sliced_rows = 512;
  int64_t most_sliced_floats = int64_t{24} << 20;
};

// The costs of a card.
struct CardCosts {
  std::string origin;  // "measured on ...", "computed from ..."
  ProductCosts product;
};

// How fast a card is, as its driver says.
struct CardRates {
  double clock_ghz = 0;      // of its multiprocessors, at most
  double bandwidth_gbs = 0;  // of its memory: clock, width and two transfers a clock
};

// What the costs of a card would be that nobody has measured: those of the H100, scaled. Tensor cores, by the code that
// the driver chose and by the shared memory of a block, which large ones come with; reading weights, by a
// multiprocessor's share of the bandwidth; instructions and latencies, by the clock. Limits that count rows stay
// as they were measured; what depends on a rate that is not known (0) stays, too.
ProductCosts computed_costs(const DeviceLimits& device, const CardRates& rates);

// Of the card in use. The built-in ones were measured on an H100, and are those of compute capability 9.0; what others
// have is said by the functions below.
const CardCosts& card_costs(const DeviceLimits& device);

// From here on card_costs() of every card: what a file of `quire tune` says of the one in use. Before the first engine;
// not while another thread computes.
void use_card_costs(const ProductCosts& costs);
// The same, of a card whose kernels are about to be chosen: computed_costs(), unless it is of compute capability 9.0
// with kernels for that, or a file was taken. The first card that is opened counts.
void use_computed_costs(const DeviceLimits& device, const CardRates& rates);

// One of them by name: for printing, for files, and for fitting.
struct NamedCost {
  std::string_view name, unit;
  double value = 0;
  double least = 0, most = 0;  // that a file may say
  bool whole = true;           // an integer
};
std::vector<NamedCost> named_costs(const ProductCosts& costs);
// False, and nothing changed, for an unknown name or a value out of its range.
bool set_cost(ProductCosts& costs, std::string_view name, double value);

}  // namespace quire::cuda
