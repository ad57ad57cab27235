#include "ops/cuda/card_costs.h"

#include <cmath>

namespace quire::cuda {
namespace {

CardCosts& costs_in_use() {
  static CardCosts costs{.measured_on = "H100 (compute capability 9.0, 132 multiprocessors)", .product = {}};
  return costs;
}

constexpr double kMostRows = 1 << 20, kMostTiles = 1 << 20;
// Counts of tiles times these still are far from the largest integer.
constexpr double kMostColumns = 1e6;

// Every field, once: visit(name, unit, least, most, field).
template <class Costs, class Visit>
void for_each(Costs& c, Visit&& visit) {
  visit("stream_rows", "rows of x", 0, kMostRows, c.stream_rows);
  visit("stream_rows_small", "rows of x", 0, kMostRows, c.stream_rows_small);
  visit("small_row_tiles", "tiles of 16 rows", 0, kMostTiles, c.small_row_tiles);
  visit("grouped_tile_rows", "rows of an expert", 0, kMostRows, c.grouped_tile_rows);
  visit("grouped_tile_rows_large", "rows of an expert", 0, kMostRows, c.grouped_tile_rows_large);
  visit("large_expert_tiles", "tiles of 16 rows, 64 columns", 0, kMostColumns, c.large_expert_tiles);
  visit("grouped_rows_32", "rows of an expert", 0, kMostRows, c.grouped_rows_32);
  visit("grouped_rows_64", "rows of an expert", 0, kMostRows, c.grouped_rows_64);
  visit("grouped_rows_128", "rows of an expert", 0, kMostRows, c.grouped_rows_128);
  visit("many_row_tiles", "tiles of 16 rows for each multiprocessor", 0, kMostTiles, c.many_row_tiles);
  visit("sweep_col_tiles", "tiles of 64 columns", 0, kMostTiles, c.sweep_col_tiles);
  visit("sweep_col_tiles_many", "tiles of 64 columns", 0, kMostTiles, c.sweep_col_tiles_many);
  visit("sweep_rows_few", "rows of x", 0, 32, c.sweep_rows_few);
  visit("sweep_rows_bf16", "rows of x", 0, 32, c.sweep_rows_bf16);
  visit("sweep_rows_dealt", "rows of x", 0, 32, c.sweep_rows_dealt);
  visit("sweep_rows", "rows of x", 0, 32, c.sweep_rows);
  visit("column_ns", "ns", 1e-3, 1e6, c.column_ns);
  visit("column_overhead", "columns' time", 0, kMostColumns, c.column_overhead);
  visit("narrow_overhead", "columns' time", 0, kMostColumns, c.narrow_overhead);
  visit("tile_overhead", "columns' time", 0, kMostColumns, c.tile_overhead);
  visit("hand_over", "columns' time", 0, kMostColumns, c.hand_over);
  visit("most_dealt_blocks", "blocks of tokens", 0, kMostRows, c.most_dealt_blocks);
  visit("sliced_floats_per_column", "floats", 1, 1e9, c.sliced_floats_per_column);
  visit("most_sliced_row_blocks", "blocks of 128 rows", 0, kMostTiles, c.most_sliced_row_blocks);
  visit("least_sliced_rows", "rows of x", 1, kMostRows, c.least_sliced_rows);
  visit("least_sliced_rows_many", "rows of x", 1, kMostRows, c.least_sliced_rows_many);
  visit("most_sliced_rows", "rows of x", 0, 1 << 14, c.most_sliced_rows);
  visit("most_sliced_floats", "floats", 0, 1 << 28, c.most_sliced_floats);
}

}  // namespace

const CardCosts& card_costs(const DeviceLimits&) {
  return costs_in_use();
}

void use_card_costs(const ProductCosts& costs) {
  costs_in_use() = {.measured_on = "the card of --card-costs", .product = costs};
}

std::vector<NamedCost> named_costs(const ProductCosts& costs) {
  std::vector<NamedCost> all;
  for_each(costs,
           [&]<class T>(std::string_view name, std::string_view unit, double least, double most, const T& field) {
             all.push_back({name, unit, static_cast<double>(field), least, most, std::is_integral_v<T>});
           });
  return all;
}

bool set_cost(ProductCosts& costs, std::string_view name, double value) {
  bool set = false;
  for_each(costs, [&]<class T>(std::string_view is, std::string_view, double least, double most, T& field) {
    if (is != name || !(value >= least) || !(value <= most)) return;
    if (std::is_integral_v<T> && value != std::floor(value)) return;
    field = static_cast<T>(value);
    set = true;
  });
  return set;
}

}  // namespace quire::cuda
