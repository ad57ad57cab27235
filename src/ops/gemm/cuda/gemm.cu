// Which kernel takes a product, and in what tiles. Whatever is chosen, the bits are the same.
#include "ops/gemm/cuda/gemm.h"

#include <algorithm>

#include "ops/gemm/cuda/launch.h"
#include "ops/gemm/cuda/problem.cuh"
#include "ops/gemm/cuda/tile.cuh"
#include "ops/gemm/cuda/tile_mma.cuh"

namespace quire::gemm {
namespace {

Error misfit(std::string_view what) {
  return {Fault::kBug, fmt::format("a product of packed weights: {}", what)};
}

Status check_part(const GemmPart& part, const GemmPart& first, const GemmParams& p) {
  const PackedWeight &w = part.weight, &f = first.weight;
  if (w.empty() || w.rows <= 0 || part.y == nullptr) return misfit("a part without weight or output");
  if (w.format != f.format || w.cols != f.cols || w.paired != f.paired ||
      w.segment_columns() != f.segment_columns() || w.experts != f.experts)
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
  int64_t cost = INT64_MAX;  // in columns' time: about 1.8 ns on an H100
};

int64_t count_tiles(const Problem& p, int32_t rows) {
  int64_t row_blocks = 0;
  for (int i = 0; i < p.part_count; ++i)
    row_blocks += (p.part[i].row_tiles + kTileRowTiles - 1) / kTileRowTiles;
  return row_blocks * ((p.rows + rows - 1) / rows);
}

// Dealing out costs a kernel that clears flags, and the sums' way through the L2; and with many blocks of tokens what runs at
// the same time shares less.
constexpr int64_t kColumnCost = 140, kTileCost = 1100, kHandOverCost = 4000, kMostDealtBlocks = 2;

// Dense tiles of which the last wave wastes least: each column tile of a tile costs its rows and about 140 more, for weights and
// for decoding, and a tile what it does once. `splits`: 1, or the segments, each in tiles of its own. `room`: for sums.
TileChoice choose_dense_tiles(const Problem& p, const TileLimits& limits, int32_t splits, bool room) {
  TileChoice best;
  const int64_t processors = limits.multiprocessors;
  for (const int32_t rows : {32, 64, 128, 192, 256}) {
    if (rows > (p.segments > 1 && (splits == 1 || limits.deals) ? limits.with_totals : limits.without)) break;
    const int64_t tiles = count_tiles(p, rows), each = splits > 1 ? p.segment_tiles : p.col_tiles;
    const int64_t waves = (tiles * splits + processors - 1) / processors;
    const int64_t cost = waves * ((rows + kColumnCost) * each + kTileCost);
    if (cost < best.cost) best = {rows, splits > 1 && limits.deals, cost};
    if (splits > 1 || !room || !limits.deals || tiles < processors ||
        (p.rows + rows - 1) / rows > kMostDealtBlocks)
      continue;
    const int64_t dealt = (tiles * each + processors - 1) / processors * (rows + kColumnCost) + kHandOverCost;
    if (dealt < best.cost) best = {rows, true, dealt};
  }
  return best;
}

TileChoice choose_tiles(const Problem& p, const TileLimits& limits, int32_t splits, bool room) {
  if (p.offsets == nullptr) return choose_dense_tiles(p, limits, splits, room);
  // An expert gets rows / experts on average: small tiles while memory decides, then large ones, which
  // find_block cuts evenly.
  const int64_t mean = p.rows / p.experts;
  return {mean < 24 ? 32 : mean < 48 ? 64 : mean < 96 ? 128 : 256};
}

// Streams keep whole rows of x in shared memory, and divide row tiles among warps: with many columns neither goes well. Tiles of
// bf16 take more than eight rows as fast, and those of 4-bit floats more than 16 if they can be dealt out evenly; other formats
// are bound by decoding there, and split tiles by their sums' traffic.
bool prefers_sweep(const Problem& k, const GemmParams& p, const cuda::DeviceLimits& device) {
  if (p.path == Path::kSweep) return true;
  if (p.path != Path::kAuto || p.split || k.offsets != nullptr) return false;
  const bool many_row_tiles = k.all_row_tiles >= 16 * device.multiprocessors;
  if (k.col_tiles <= (many_row_tiles ? 32 : 64)) return false;
  const TileFormat format = p.parts[0].weight.format;
  if (!many_row_tiles) return k.rows <= 16;
  if (format == TileFormat::kBf16) return k.rows <= 8;
  const bool four_bit = format == TileFormat::kNvfp4 || format == TileFormat::kMxfp4;
  return k.rows <= (four_bit && device.wgmma && p.sums != nullptr ? 16 : 32);
}

// Few rows go to the stream kernel: it keeps every multiprocessor reading. With more rows its tokens cost more of the
// L2's bandwidth than tiles, which read them once for 128 rows of a weight.
bool prefers_tiles(const GemmParams& p) {
  if (p.split || p.path == Path::kStream || p.path == Path::kSweep) return false;
  if (p.path != Path::kAuto) return true;
  if (p.grouped.offsets != nullptr)
    return p.rows >= 10 * p.parts[0].weight.experts;  // of an expert, on average
  int64_t row_tiles = 0;
  for (int i = 0; i < p.part_count; ++i) row_tiles += p.parts[i].weight.row_tiles();
  return p.rows > (row_tiles < 8 * 64 ? 32 : 8);
}

// ---- Products of few row tiles over many columns: their segments as tiles of their own

constexpr int64_t kMostSplitRows = 512, kMostSplitFloats = int64_t{24} << 20;

struct SplitRoom {
  int64_t floats_per_row = 0;  // of x
  int32_t most_rows = 0;       // that may be split; 0: none
};
SplitRoom split_room(const GemmParams& p) {
  const PackedWeight& w = p.parts[0].weight;
  if (p.grouped.offsets != nullptr || w.paired || w.segments() < 2) return {};
  SplitRoom room;
  int64_t row_blocks = 0;
  for (int i = 0; i < p.part_count; ++i) {
    const PackedWeight& part = p.parts[i].weight;
    row_blocks += (part.row_tiles() + 7) / 8;
    room.floats_per_row += static_cast<int64_t>(part.segments()) * part.rows;
  }
  if (row_blocks > 64) return {};  // half of a large GPU's multiprocessors
  room.most_rows = static_cast<int32_t>(std::min(kMostSplitRows, kMostSplitFloats / room.floats_per_row));
  return room;
}
// Adding up costs a launch, and the sums' way to memory and back.
bool prefers_split(const Problem& p, const GemmParams& params, const TileLimits& limits) {
  const SplitRoom room = split_room(params);
  if (params.sums == nullptr || p.rows <= 8 || p.rows > room.most_rows) return false;
  const int64_t adding = room.floats_per_row * p.rows / 550;
  return choose_dense_tiles(p, limits, p.segments, true).cost + adding <
         choose_dense_tiles(p, limits, 1, true).cost;
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
  return p.rows > 128 || forced ? 256 : p.rows > 64 ? 128 : 64;
}

Status launch_split(cudaStream_t stream, const Problem& k, const GemmParams& p, LaunchChoice choice,
                    Status (*launch_tiles)(cudaStream_t, const Problem&, const LaunchChoice&), float unit) {
  if (p.sums == nullptr || k.rows > split_room(p).most_rows) return misfit("no room for sums of segments");
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

template <TileFormat F>
Status launch(cudaStream_t stream, const Problem& k, const GemmParams& p, LaunchChoice choice) {
  const int64_t rows = k.offsets == nullptr ? k.rows : k.rows / k.experts;
  choice.block_rows = rows <= 8 ? 8 : 32;
  if (prefers_sweep(k, p, choice.device)) {
    choice.forced = p.path == Path::kSweep;
    QUIRE_TRY(const bool launched, launch_sweep<F>(stream, k, choice));
    if (launched) return {};
    if (choice.forced) return misfit("no product for a sweep");
  }
  const TileLimits limits = tile_limits<F>(choice.device);
  const bool split = p.path == Path::kSplit || (p.path == Path::kAuto && prefers_split(k, p, limits));
  if (!split && !prefers_tiles(p)) return launch_stream<F>(stream, k, choice);
  if (p.grouped.x_rows != nullptr) return misfit("rows for tiles lie together");
  const bool room = p.sums != nullptr && (p.path == Path::kAuto || p.path == Path::kDealt);
  const TileChoice tiles = choose_tiles(k, limits, split ? k.segments : 1, room);
  choice.dealt = split ? limits.deals : tiles.dealt;
  choice.block_rows = tiles.rows;
  if (p.path == Path::kDealt && room && dealt_width(p, choice.device) > 0) choice.dealt = true;
  if (p.tile_rows != 0)
    choice.block_rows = std::min(
        p.tile_rows, k.segments > 1 && (!split || limits.deals) ? limits.with_totals : limits.without);
  choice.handed = p.sums;
  if (split) return launch_split(stream, k, p, choice, launch_tile<F>, tile_unit(F));
  return launch_tile<F>(stream, k, choice);
}

}  // namespace

bool takes_tiles(const GemmParams& p) {
  return prefers_tiles(p);
}

int64_t split_floats(const GemmParams& p) {
  const SplitRoom room = split_room(p);
  const int64_t apart = room.floats_per_row * std::min(room.most_rows, p.rows);
  const Result<cuda::DeviceLimits> device = cuda::device_limits();
  if (!device.ok()) return apart;  // launch_gemm says so
  const int32_t width = dealt_width(p, *device);
  return width == 0 ? apart : std::max(apart, hand_over_floats(device->multiprocessors, width));
}

Status launch_gemm(cudaStream_t stream, const GemmParams& p) {
  if (p.rows < 0) return misfit("negative rows");
  if (p.rows == 0) return {};
  QUIRE_TRY(const Problem k, describe(p));
  LaunchChoice choice;
  QUIRE_TRY(choice.device, cuda::device_limits());
  choice.split = p.split;
  switch (p.parts[0].weight.format) {
    case TileFormat::kBf16:
      return launch<TileFormat::kBf16>(stream, k, p, choice);
    case TileFormat::kBf16x2:
      return launch<TileFormat::kBf16x2>(stream, k, p, choice);
    case TileFormat::kBf16x3:
      return launch<TileFormat::kBf16x3>(stream, k, p, choice);
    case TileFormat::kQ8_0:
      return launch<TileFormat::kQ8_0>(stream, k, p, choice);
    case TileFormat::kQ4_K:
      return launch<TileFormat::kQ4_K>(stream, k, p, choice);
    case TileFormat::kQ6_K:
      return launch<TileFormat::kQ6_K>(stream, k, p, choice);
    case TileFormat::kMxfp4:
      return launch<TileFormat::kMxfp4>(stream, k, p, choice);
    case TileFormat::kNvfp4:
      return launch<TileFormat::kNvfp4>(stream, k, p, choice);
  }
  return misfit("no such format");
}

}  // namespace quire::gemm
