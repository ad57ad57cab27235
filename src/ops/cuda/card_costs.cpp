#include "ops/cuda/card_costs.h"

namespace quire::cuda {

const CardCosts& card_costs(const DeviceLimits&) {
  static const CardCosts hopper{.measured_on = "H100 (compute capability 9.0, 132 multiprocessors)", .product = {}};
  return hopper;
}

std::vector<NamedCost> named_costs(const CardCosts& costs) {
  const ProductCosts& p = costs.product;
  const auto number = [](int64_t n) { return static_cast<double>(n); };
  return {
      {"stream_rows", "rows of x", number(p.stream_rows)},
      {"stream_rows_small", "rows of x", number(p.stream_rows_small)},
      {"small_row_tiles", "tiles of 16 rows", number(p.small_row_tiles)},
      {"grouped_tile_rows", "rows of an expert", number(p.grouped_tile_rows)},
      {"grouped_rows_32", "rows of an expert", number(p.grouped_rows_32)},
      {"grouped_rows_64", "rows of an expert", number(p.grouped_rows_64)},
      {"grouped_rows_128", "rows of an expert", number(p.grouped_rows_128)},
      {"many_row_tiles", "tiles of 16 rows for each multiprocessor", number(p.many_row_tiles)},
      {"sweep_col_tiles", "tiles of 64 columns", number(p.sweep_col_tiles)},
      {"sweep_col_tiles_many", "tiles of 64 columns", number(p.sweep_col_tiles_many)},
      {"sweep_rows_few", "rows of x", number(p.sweep_rows_few)},
      {"sweep_rows_bf16", "rows of x", number(p.sweep_rows_bf16)},
      {"sweep_rows_dealt", "rows of x", number(p.sweep_rows_dealt)},
      {"sweep_rows", "rows of x", number(p.sweep_rows)},
      {"column_ns", "ns", p.column_ns},
      {"column_overhead", "columns' time", number(p.column_overhead)},
      {"tile_overhead", "columns' time", number(p.tile_overhead)},
      {"hand_over", "columns' time", number(p.hand_over)},
      {"most_dealt_blocks", "blocks of tokens", number(p.most_dealt_blocks)},
      {"split_floats_per_column", "floats", number(p.split_floats_per_column)},
      {"most_split_row_blocks", "blocks of 128 rows", number(p.most_split_row_blocks)},
      {"least_split_rows", "rows of x", number(p.least_split_rows)},
      {"most_split_rows", "rows of x", number(p.most_split_rows)},
      {"most_split_floats", "floats", number(p.most_split_floats)},
  };
}

}  // namespace quire::cuda
