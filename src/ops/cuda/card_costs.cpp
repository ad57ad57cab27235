#include "ops/cuda/card_costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <mutex>

namespace quire::cuda {
namespace {

CardCosts& costs_in_use() {
  static CardCosts costs{.origin = "measured on an H100 (compute capability 9.0, 132 multiprocessors)", .product = {}};
  return costs;
}
// Whose costs these are: a file's are nobody else's to change.
bool of_file = false;

// The card that was measured.
constexpr double kMeasuredProcessors = 132, kMeasuredClock = 1.98, kMeasuredBandwidth = 3350;
constexpr double kMeasuredFlops = 4096;  // of bf16, by one multiprocessor in a clock: wgmma

// The same of others. Multiprocessors whose blocks may have 163 KiB (8.0, 8.7, 10.x, 11.0) have twice the tensor cores
// that those with 99 have (8.6, 8.9, 12.x), as mma.sync reaches them.
double flops_per_clock(const DeviceLimits& d) {
  constexpr int kLargeSharedBytes = 160 << 10;
  return d.wgmma ? kMeasuredFlops : d.shared_bytes >= kLargeSharedBytes ? 2048 : 1024;
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

ProductCosts computed_costs(const DeviceLimits& device, const CardRates& rates) {
  ProductCosts c;
  const double processors = device.multiprocessors / kMeasuredProcessors;
  const auto scaled = [](int64_t& cost, double by) {
    cost = std::llround(std::clamp(static_cast<double>(cost) * by, 1.0, kMostColumns));
  };
  if (device.multiprocessors > 0) {
    scaled(c.small_row_tiles, processors);
    scaled(c.most_sliced_row_blocks, processors);
  }
  if (rates.clock_ghz <= 0) return c;
  // All that is counted in columns' time becomes less where a column takes longer.
  const double in_clocks = kMeasuredFlops / flops_per_clock(device),
               in_ns = in_clocks * kMeasuredClock / rates.clock_ghz;
  c.column_ns = std::clamp(c.column_ns * in_ns, 1e-3, 1e6);
  scaled(c.narrow_overhead, 1 / in_clocks);
  scaled(c.tile_overhead, 1 / in_clocks);
  scaled(c.hand_over, 1 / in_ns);
  if (device.multiprocessors <= 0 || rates.bandwidth_gbs <= 0) return c;
  const double bandwidth = rates.bandwidth_gbs / kMeasuredBandwidth;
  // Reading a column tile's weights, or decoding them, whichever takes longer; on the H100 both take about the same.
  scaled(c.column_overhead, std::max(processors / bandwidth / in_ns, 1 / in_clocks));
  c.sliced_floats_per_column =
      std::llround(std::clamp(static_cast<double>(c.sliced_floats_per_column) * bandwidth * in_ns, 1.0, 1e9));
  return c;
}

const CardCosts& card_costs(const DeviceLimits&) {
  return costs_in_use();
}

void use_card_costs(const ProductCosts& costs) {
  of_file = true;
  costs_in_use() = {.origin = "measured on the card of --card-costs", .product = costs};
}

void use_computed_costs(const DeviceLimits& device, const CardRates& rates) {
  // Written once: who has opened a card may be computing already.
  static std::once_flag once;
  if (of_file || (device.wgmma && device.major == 9)) return;
  std::call_once(once, [&] {
    costs_in_use() = {
        .origin = fmt::format("computed from {} multiprocessors at {:.2f} GHz and {:.0f} GB/s, and an H100's",
                              device.multiprocessors, rates.clock_ghz, rates.bandwidth_gbs),
        .product = computed_costs(device, rates)};
  });
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
