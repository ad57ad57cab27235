// Which kernel takes a product, and in what tiles. Whatever is chosen, the bits are the same.
#include "ops/gemm/cuda/gemm.h"

#include <algorithm>

#include "ops/cuda/card_costs.h"
#include "ops/gemm/cuda/launch.h"
#include "ops/gemm/cuda/problem.cuh"
#include "ops/gemm/cuda/stream_plan.cuh"
#include "ops/gemm/cuda/sweep_plan.cuh"
#include "ops/gemm/cuda/tile.cuh"
#include "ops/gemm/cuda/tile_mma.cuh"
#include "ops/gemm/cuda/with_format.h"

namespace quire::gemm {
namespace {

Error misfit(std::string_view what) {
  return {Fault::kBug, fmt::format("a product of packed weights: {}", what)};
}

Status check_part(const GemmPart& part, const GemmPart& first, const GemmParams& p) {
  const PackedWeight &w = part.weight, &f = first.weight;
  if (w.empty() || w.rows <= 0 || part.y == nullptr) return misfit("a part without weight or output");
  if (w.format != f.format || w.cols != f.cols || w.paired != f.paired || w.segment_columns() != f.segment_columns() ||
      w.experts != f.experts)
    return misfit("parts of different kinds in one launch");
  if (w.paired && part.out != Out::kBf16) return misfit("SwiGLU goes to bf16");
  if (p.grouped.offsets == nullptr && w.experts != 1) return misfit("experts without rows sorted by expert");
  if (p.grouped.offsets != nullptr && (part.bias != nullptr || part.bias2 != nullptr))
    return misfit("experts have no bias");
  return {};
}

Result<Problem> describe(const GemmParams& p) {
  if (p.part_count < 1 || p.part_count > kMaxParts) return misfit("too many parts, or none");
  if (p.grouped.offsets != nullptr && p.part_count != 1) return misfit("experts are one part");
  const PackedWeight& w = p.parts[0].weight;
  if (w.cols <= 0 || w.cols % 8 != 0 || p.x_stride % 8 != 0 || reinterpret_cast<uintptr_t>(p.x) % 16 != 0)
    return misfit("rows of x must be aligned to 16 bytes and a multiple of them");
  if (w.segment_columns() % kTileCols != 0) return misfit("a segment is whole tiles");
  Problem k{};
  for (int i = 0; i < p.part_count; ++i) {
    const GemmPart& part = p.parts[i];
    QUIRE_CHECKED(check_part(part, p.parts[0], p));
    k.part[i] = {reinterpret_cast<const uint8_t*>(part.weight.data),
                 part.scale,
                 part.scale2,
                 part.bias,
                 part.bias2,
                 part.y,
                 part.y_stride,
                 part.weight.expert_bytes(),
                 part.weight.row_tiles(),
                 part.weight.rows,
                 part.out};
    k.all_row_tiles += part.weight.row_tiles();
  }
  k.x = p.x;
  k.x_stride = p.x_stride;
  k.offsets = p.grouped.offsets;
  k.x_rows = p.grouped.x_rows;
  k.y_rows = p.grouped.y_rows;
  k.part_count = p.part_count;
  k.experts = w.experts;
  k.rows = p.rows;
  k.most_rows = p.grouped.most > 0 ? p.grouped.most : p.rows;
  k.cols = w.cols;
  k.col_tiles = w.col_tiles();
  k.segment_tiles = w.segment_columns() / kTileCols;
  k.segments = (k.col_tiles + k.segment_tiles - 1) / k.segment_tiles;
  k.paired = w.paired;
  if (k.segments > kMaxSegments) return misfit("too many segments");
  if (p.split && (k.offsets != nullptr || p.part_count != 1 || k.paired || p.parts[0].out != Out::kF32 ||
                  p.parts[0].scale != nullptr || p.parts[0].bias != nullptr))
    return misfit("segments apart are a matter of one plain weight");
  return k;
}

// What choosing depends on: multiprocessors, and how many rows of x a tile can have, with totals of several segments in
// registers and without.
struct TileLimits {
  int multiprocessors;
  int32_t with_totals, without;
  bool deals;  // work can be dealt out evenly
};
template <TileFormat F>
TileLimits tile_limits(const cuda::DeviceLimits& device) {
  if (device.wgmma) return {device.multiprocessors, Widths<F, true>::kMost, Widths<F, false>::kMost, true};
  return {device.multiprocessors, 128, kHasWideTiles<Decoder<F>> ? 256 : 128, false};
}

struct TileChoice {
  int32_t rows = 32;  // of x in a tile
  bool dealt = false;
  int64_t cost = INT64_MAX;  // in columns' time (ProductCosts::column_ns)
};

int64_t count_tiles(const Problem& p, int32_t rows) {
  int64_t row_blocks = 0;
  for (int i = 0; i < p.part_count; ++i) row_blocks += (p.part[i].row_tiles + kTileRowTiles - 1) / kTileRowTiles;
  return row_blocks * ((p.rows + rows - 1) / rows);
}

// Dense tiles of which the last wave wastes least. `splits`: 1, or the segments, each in tiles of its own. `room`: for
// sums.
TileChoice choose_dense_tiles(const Problem& p, const TileLimits& limits, const cuda::ProductCosts& costs,
                              int32_t splits, bool room) {
  TileChoice best;
  const int64_t processors = limits.multiprocessors;
  for (const int32_t rows : {32, 64, 128, 192, 256}) {
    if (rows > (p.segments > 1 && (splits == 1 || limits.deals) ? limits.with_totals : limits.without)) break;
    const int64_t tiles = count_tiles(p, rows), each = splits > 1 ? p.segment_tiles : p.col_tiles;
    const int64_t waves = (tiles * splits + processors - 1) / processors;
    const int64_t cost = waves * ((rows + costs.column_overhead) * each + costs.tile_overhead);
    if (cost < best.cost) best = {rows, splits > 1 && limits.deals, cost};
    if (splits > 1 || !room || !limits.deals || tiles < processors ||
        (p.rows + rows - 1) / rows > costs.most_dealt_blocks)
      continue;
    const int64_t dealt =
        (tiles * each + processors - 1) / processors * (rows + costs.column_overhead) + costs.hand_over;
    if (dealt < best.cost) best = {rows, true, dealt};
  }
  return best;
}

TileChoice choose_tiles(const Problem& p, const TileLimits& limits, const cuda::ProductCosts& costs, int32_t splits,
                        bool room) {
  if (p.offsets == nullptr) return choose_dense_tiles(p, limits, costs, splits, room);
  // An expert gets rows / experts on average: small tiles while memory decides, then large ones, which
  // find_block cuts evenly.
  const int64_t mean = p.rows / p.experts;
  return {mean < costs.grouped_rows_32    ? 32
          : mean < costs.grouped_rows_64  ? 64
          : mean < costs.grouped_rows_128 ? 128
                                          : 256};
}

// ---- Sweeps

// Rows of x in a unit of work of streams and sweeps.
int32_t unit_rows(const Problem& k) {
  const int64_t rows = k.offsets == nullptr ? k.rows : k.rows / k.experts;
  return rows <= 8 ? 8 : 32;
}

// Whether there is a plan; `forced`: also one that would be slow.
template <TileFormat F>
bool can_sweep(const Problem& k, const cuda::DeviceLimits& device, bool forced) {
  LaunchChoice choice;
  choice.device = device;
  choice.block_rows = unit_rows(k);
  choice.forced = forced;
  return plan_sweep(k, choice, Decoder<F>::kTileBytes, kSweepWarps<Decoder<F>>).has_value();
}

// Streams keep whole rows of x in shared memory, and divide row tiles among warps: with many columns neither goes well.
// Tiles of bf16 take more than eight rows as fast, and those of 4-bit floats more than 16 if they can be dealt out
// evenly; other formats are bound by decoding there, and split tiles by their sums' traffic.
bool prefers_sweep(const Problem& k, const GemmParams& p, const cuda::DeviceLimits& device,
                   const cuda::ProductCosts& costs) {
  if (p.split || k.offsets != nullptr) return false;
  const bool many_row_tiles = k.all_row_tiles >= costs.many_row_tiles * device.multiprocessors;
  if (k.col_tiles <= (many_row_tiles ? costs.sweep_col_tiles_many : costs.sweep_col_tiles)) return false;
  const TileFormat format = p.parts[0].weight.format;
  if (!many_row_tiles) return k.rows <= costs.sweep_rows_few;
  if (format == TileFormat::kBf16) return k.rows <= costs.sweep_rows_bf16;
  const bool four_bit = format == TileFormat::kNvfp4 || format == TileFormat::kMxfp4;
  return k.rows <= (four_bit && device.wgmma && p.room ? costs.sweep_rows_dealt : costs.sweep_rows);
}

// Few rows go to the stream kernel: it keeps every multiprocessor reading. With more rows its tokens cost more of the
// L2's bandwidth than tiles, which read them once for 128 rows of a weight.
bool prefers_tiles(const GemmParams& p, const cuda::ProductCosts& costs) {
  if (p.split) return false;
  if (p.grouped.offsets != nullptr)
    return p.rows >= costs.grouped_tile_rows * p.parts[0].weight.experts;  // of an expert, on average
  int64_t row_tiles = 0;
  for (int i = 0; i < p.part_count; ++i) row_tiles += p.parts[i].weight.row_tiles();
  return p.rows > (row_tiles < costs.small_row_tiles ? costs.stream_rows_small : costs.stream_rows);
}

// ---- Products of few row tiles over many columns: their segments as tiles of their own

struct SplitRoom {
  int64_t floats_per_row = 0;  // of x
  int32_t most_rows = 0;       // that may be split; 0: none
};
SplitRoom split_room(const GemmParams& p, const cuda::ProductCosts& costs) {
  const PackedWeight& w = p.parts[0].weight;
  if (p.grouped.offsets != nullptr || w.paired || w.segments() < 2) return {};
  SplitRoom room;
  int64_t row_blocks = 0;
  for (int i = 0; i < p.part_count; ++i) {
    const PackedWeight& part = p.parts[i].weight;
    row_blocks += (part.row_tiles() + 7) / 8;
    room.floats_per_row += static_cast<int64_t>(part.segments()) * part.rows;
  }
  if (row_blocks > costs.most_split_row_blocks) return {};
  room.most_rows = static_cast<int32_t>(std::min(costs.most_split_rows, costs.most_split_floats / room.floats_per_row));
  return room;
}
// Adding up costs a launch, and the sums' way to memory and back.
bool prefers_split(const Problem& p, const GemmParams& params, const TileLimits& limits,
                   const cuda::ProductCosts& costs) {
  const SplitRoom room = split_room(params, costs);
  if (!params.room || p.rows < costs.least_split_rows || p.rows > room.most_rows) return false;
  const int64_t adding = room.floats_per_row * p.rows / costs.split_floats_per_column;
  return choose_dense_tiles(p, limits, costs, p.segments, true).cost + adding <
         choose_dense_tiles(p, limits, costs, 1, true).cost;
}

// ---- Tiles dealt out evenly

// Rows of x of the widest tile that may be handed over; 0 where that is none.
int32_t dealt_width(const GemmParams& p, const cuda::DeviceLimits& device) {
  if (!device.wgmma || p.grouped.offsets != nullptr || p.split) return 0;
  int64_t row_blocks = 0;
  for (int i = 0; i < p.part_count; ++i)
    row_blocks += (p.parts[i].weight.row_tiles() + kTileRowTiles - 1) / kTileRowTiles;
  const bool forced = p.path == Path::kDealt;
  if (!forced && row_blocks * ((p.rows + 31) / 32) < device.multiprocessors) return 0;
  return p.rows > 128 ? 256 : p.rows > 64 ? 128 : 64;
}

Status launch_split(cudaStream_t stream, const Problem& k, const GemmParams& p, LaunchChoice choice,
                    Status (*launch_tiles)(cudaStream_t, const Problem&, const LaunchChoice&), float unit) {
  Problem apart = k;
  const float* sums[kMaxParts];
  float* next = p.sums;
  for (int i = 0; i < k.part_count; ++i) {
    KernelPart& part = apart.part[i];
    sums[i] = next;
    part.y = next;
    part.y_stride = part.rows;
    part.out = Out::kF32;
    part.scale = part.bias = nullptr;
    next += static_cast<int64_t>(k.segments) * k.rows * part.rows;
  }
  choice.split = true;
  QUIRE_CHECKED(launch_tiles(stream, apart, choice));
  TileGrid grid{choice.block_rows, k.segments, 0, choice.dealt};
  const int64_t tiles = count_tiles(k, choice.block_rows);
  grid.row_blocks = static_cast<int32_t>(count_tiles(k, k.rows));
  const int32_t blocks = choice.dealt ? dealt_blocks(tiles, k.segments, choice.device.multiprocessors) : 0;
  return launch_add_segments(stream, k, sums, unit, grid, blocks);
}

// What is expected to be fastest.
template <TileFormat F>
Path choose(const Problem& k, const GemmParams& p, const cuda::DeviceLimits& device) {
  const cuda::ProductCosts& costs = cuda::card_costs(device).product;
  if (prefers_sweep(k, p, device, costs) && can_sweep<F>(k, device, false)) return Path::kSweep;
  const TileLimits limits = tile_limits<F>(device);
  if (prefers_split(k, p, limits, costs)) return Path::kSplit;
  if (!prefers_tiles(p, costs)) return Path::kStream;
  return choose_tiles(k, limits, costs, 1, p.room).dealt ? Path::kDealt : Path::kTile;
}

template <TileFormat F>
bool fits(Path path, const Problem& k, const GemmParams& p, const cuda::DeviceLimits& device) {
  switch (path) {
    case Path::kAuto:
      return true;
    case Path::kStream: {
      LaunchChoice choice;
      choice.device = device;
      choice.split = p.split;
      return plan_stream(k, choice, Decoder<F>::kTileBytes, kStreamThreads<Decoder<F>> / 32).ok();
    }
    case Path::kSweep:
      return !p.split && can_sweep<F>(k, device, true);
    case Path::kTile:
      return !p.split && p.grouped.x_rows == nullptr;
    case Path::kSplit:
      return !p.split && k.rows <= split_room(p, cuda::card_costs(device).product).most_rows;
    case Path::kDealt:
      return !p.split && device.wgmma && k.offsets == nullptr;
  }
  return false;
}

template <TileFormat F>
Status launch(cudaStream_t stream, const Problem& k, const GemmParams& params, const cuda::DeviceLimits& device) {
  GemmParams p = params;
  if (p.path == Path::kAuto) p.path = choose<F>(k, p, device);
  if (p.path == Path::kDealt && !device.wgmma) p.path = Path::kTile;
  if (!fits<F>(p.path, k, p, device)) return misfit("what was chosen does not take it");
  LaunchChoice choice;
  choice.device = device;
  choice.split = p.split;
  choice.block_rows = unit_rows(k);
  if (p.path == Path::kStream) return launch_stream<F>(stream, k, choice);
  if (p.path == Path::kSweep) {
    choice.forced = !can_sweep<F>(k, device, false);
    QUIRE_TRY(const bool launched, launch_sweep<F>(stream, k, choice));
    return launched ? Status{} : misfit("no product for a sweep");
  }
  const TileLimits limits = tile_limits<F>(device);
  const cuda::ProductCosts& costs = cuda::card_costs(device).product;
  const bool split = p.path == Path::kSplit, room = p.room && p.path == Path::kDealt;
  const TileChoice tiles = choose_tiles(k, limits, costs, split ? k.segments : 1, room);
  choice.dealt = split ? limits.deals : room;
  choice.block_rows = tiles.rows;
  if (p.tile_rows != 0)
    choice.block_rows =
        std::min(p.tile_rows, k.segments > 1 && (!split || limits.deals) ? limits.with_totals : limits.without);
  if ((split || room) && p.sums == nullptr) return misfit("no room for sums");
  choice.handed = p.sums;
  if (split) return launch_split(stream, k, p, choice, launch_tile<F>, tile_unit(F));
  return launch_tile<F>(stream, k, choice);
}

}  // namespace

bool takes(const GemmParams& p, const cuda::DeviceLimits& device) {
  const Result<Problem> k = describe(p);
  return k.ok() &&
         with_format(p.parts[0].weight.format, [&]<TileFormat F>() { return fits<F>(p.path, *k, p, device); });
}

Path choose_path(const GemmParams& p, const cuda::DeviceLimits& device) {
  if (p.path != Path::kAuto) return p.path;
  const Result<Problem> k = describe(p);
  if (!k.ok()) return Path::kAuto;  // launch_gemm says so
  return with_format(p.parts[0].weight.format, [&]<TileFormat F>() { return choose<F>(*k, p, device); });
}

int64_t split_floats(const GemmParams& p, const cuda::DeviceLimits& device) {
  const SplitRoom room = split_room(p, cuda::card_costs(device).product);
  const int64_t apart = room.floats_per_row * std::min(room.most_rows, p.rows);
  const int32_t width = dealt_width(p, device);
  return width == 0 ? apart : std::max(apart, hand_over_floats(device.multiprocessors, width));
}

Status launch_gemm(cudaStream_t stream, const GemmParams& p) {
  if (p.rows < 0) return misfit("negative rows");
  if (p.rows == 0) return {};
  QUIRE_TRY(const Problem k, describe(p));
  QUIRE_TRY(const cuda::DeviceLimits device, cuda::device_limits());
  return with_format(p.parts[0].weight.format, [&]<TileFormat F>() { return launch<F>(stream, k, p, device); });
}

}  // namespace quire::gemm
