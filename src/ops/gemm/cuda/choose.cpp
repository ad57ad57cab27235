#include "ops/gemm/cuda/choose.h"

namespace quire::gemm {
namespace {

// Dense tiles of which the last wave wastes least.
TileChoice choose_dense_tiles(const Product& product, const TileLimits& limits, const cuda::ProductCosts& costs,
                              bool sliced, bool room) {
  const Problem& p = product.problem;
  TileChoice best;
  for (const int32_t rows : {32, 64, 128, 192, 256}) {
    if (rows > limits.most_rows(p, sliced)) break;
    TileWork work = tile_work(product, sliced ? Path::kSliced : Path::kTile, rows, limits);
    work.added_floats = 0;  // the same for all tiles: prefers_sliced
    const int64_t cost = work.cost(costs);
    if (cost < best.cost) best = {rows, sliced && limits.deals, cost};
    const int64_t row_blocks = blocks_of(p.rows, rows);
    if (sliced || !room || !limits.deals || product.row_blocks() * row_blocks < limits.multiprocessors ||
        row_blocks > costs.most_dealt_blocks)
      continue;
    const int64_t dealt = tile_work(product, Path::kDealt, rows, limits).cost(costs);
    if (dealt < best.cost) best = {rows, true, dealt};
  }
  return best;
}

// Few rows go to the stream kernel: it keeps every multiprocessor reading. With more rows its tokens cost more of the
// L2's bandwidth than tiles, which read them once for 128 rows of a weight.
bool prefers_tiles(const Product& p, const cuda::ProductCosts& costs) {
  const Problem& k = p.problem;
  if (p.grouped()) {
    const bool large = int64_t{k.all_row_tiles} * k.col_tiles >= costs.large_expert_tiles;
    return k.rows >=
           (large ? costs.grouped_tile_rows_large : costs.grouped_tile_rows) * k.experts;  // of an expert: mean
  }
  return k.rows > (k.all_row_tiles < costs.small_row_tiles ? costs.stream_rows_small : costs.stream_rows);
}

// Adding up costs a launch, and the sums' way to memory and back.
bool prefers_sliced(const Product& product, const TileLimits& limits, const cuda::ProductCosts& costs) {
  const SlicedRoom room = sliced_room(product, costs);
  const int32_t rows = product.problem.rows;
  const bool many_columns = product.problem.col_tiles > costs.sweep_col_tiles;
  const int64_t least = many_columns ? costs.least_sliced_rows_many : costs.least_sliced_rows;
  if (!product.room || rows < least || rows > room.most_rows) return false;
  const int64_t adding = room.floats_per_row * rows / costs.sliced_floats_per_column;
  return choose_dense_tiles(product, limits, costs, true, true).cost + adding <
         choose_dense_tiles(product, limits, costs, false, true).cost;
}

// Sums of all K slices, of four row tiles together.
int64_t apart_floats_per_row(const Problem& p) {
  int64_t rows = 0;
  for (int i = 0; i < p.part_count; ++i) rows += blocks_of(p.part[i].row_tiles, 4) * 4 * kTileRows;
  return p.k_slices * rows;
}

}  // namespace

void Product::add(const PackedWeight& w, Part part) {
  Problem& p = problem;
  const auto refuse = [&](std::string_view why) { misfit = why; };
  if (w.empty() || w.rows <= 0) return refuse("a part without weight");
  if (w.cols <= 0 || w.cols % 8 != 0) return refuse("columns must be a multiple of 8");
  if (w.k_slice_columns() % kTileCols != 0) return refuse("a K slice is whole tiles");
  if (p.part_count == kMaxParts || (p.part_count == 1 && grouped())) return refuse("too many parts");
  const int32_t k_slice_tiles = w.k_slice_columns() / kTileCols;
  if (p.part_count == 0) {
    format = w.format;
    p.experts = w.experts;
    p.cols = w.cols;
    p.col_tiles = w.col_tiles();
    p.k_slice_tiles = k_slice_tiles;
    p.k_slices = w.k_slices();
    p.paired = w.paired;
  }
  if (w.format != format || w.cols != p.cols || w.paired != p.paired || k_slice_tiles != p.k_slice_tiles ||
      w.experts != p.experts)
    return refuse("parts of different kinds in one launch");
  if (p.k_slices > kMaxKSlices) return refuse("too many K slices");
  if (w.paired && part.out != Out::kBf16) return refuse("SwiGLU goes to bf16");
  if (!grouped() && w.experts != 1) return refuse("experts without rows sorted by expert");
  part.weight = reinterpret_cast<const uint8_t*>(w.data);
  part.expert_bytes = w.expert_bytes();
  part.row_tiles = w.row_tiles();
  part.rows = w.rows;
  p.all_row_tiles += part.row_tiles;
  p.part[p.part_count++] = part;
}

int64_t Product::row_blocks() const {
  int64_t blocks = 0;
  for (int i = 0; i < problem.part_count; ++i) blocks += blocks_of(problem.part[i].row_tiles, kTileRowTiles);
  return blocks;
}

TileWork tile_work(const Product& product, Path path, int32_t rows, const TileLimits& limits) {
  const Problem& p = product.problem;
  const bool sliced = path == Path::kSliced, dealt = path == Path::kDealt || (sliced && limits.deals);
  const int64_t tiles = product.row_blocks() * blocks_of(p.rows, rows);
  const int64_t units = sliced ? tiles * p.k_slices : tiles, each = sliced ? p.k_slice_tiles : p.col_tiles;
  // Narrow tiles may run two on a multiprocessor even where there are fewer than multiprocessors: the kernel before
  // this one leaves some of these sooner than others.
  const int32_t together = rows <= limits.narrow_rows ? 2 : 1;
  const int64_t blocks = dealt ? dealt_blocks(tiles, sliced ? p.k_slices : 1, limits.multiprocessors, together)
                               : std::min<int64_t>(units, int64_t{together} * limits.multiprocessors);
  // Of a block: units, and column tiles.
  const int64_t share = blocks_of(units, blocks),
                columns = path == Path::kDealt ? blocks_of(tiles * p.col_tiles, blocks) : share * each;
  TileWork work{.columns = together * columns * rows};
  (together == 2 ? work.narrow_pairs : work.column_tiles) = columns;
  if (sliced) work.column_tiles += share;  // leaving sums costs about what a column tile does besides
  if (path == Path::kDealt)
    work.hand_overs = 1;
  else
    work.tiles = sliced && limits.deals ? 1 + (share - 1) / p.k_slices : share;
  if (sliced) work.added_floats = apart_floats_per_row(p) * p.rows;
  return work;
}

TileChoice choose_tiles(const Product& p, const TileLimits& limits, const cuda::ProductCosts& costs, bool sliced,
                        bool room) {
  if (!p.grouped()) return choose_dense_tiles(p, limits, costs, sliced, room);
  // An expert gets rows / experts on average: small tiles while memory decides, then large ones, which find_block cuts
  // evenly.
  const int64_t mean = p.problem.rows / p.problem.experts;
  return {mean < costs.grouped_rows_32    ? 32
          : mean < costs.grouped_rows_64  ? 64
          : mean < costs.grouped_rows_128 ? 128
                                          : 256};
}

// Streams keep whole rows of x in shared memory, and divide row tiles among warps: with many columns neither goes well.
// Tiles of bf16 take more than eight rows as fast, and those of 4-bit floats more than 16 if they can be dealt out
// evenly; other formats are bound by decoding there, and sliced tiles by their sums' traffic.
bool prefers_sweep(const Product& p, const TileLimits& limits, const cuda::ProductCosts& costs) {
  const Problem& k = p.problem;
  if (p.grouped()) return false;
  const bool many_row_tiles = k.all_row_tiles >= costs.many_row_tiles * limits.multiprocessors;
  if (k.col_tiles <= (many_row_tiles ? costs.sweep_col_tiles_many : costs.sweep_col_tiles)) return false;
  if (!many_row_tiles) return k.rows <= costs.sweep_rows_few;
  if (p.format == TileFormat::kBf16) return k.rows <= costs.sweep_rows_bf16;
  return k.rows <= (is_fp4(p.format) && limits.deals && p.room ? costs.sweep_rows_dealt : costs.sweep_rows);
}

Path choose_but_sweep(const Product& p, const TileLimits& limits, const cuda::ProductCosts& costs) {
  if (prefers_sliced(p, limits, costs)) return Path::kSliced;
  if (!prefers_tiles(p, costs)) return Path::kStream;
  return choose_tiles(p, limits, costs, false, p.room).dealt ? Path::kDealt : Path::kTile;
}

SlicedRoom sliced_room(const Product& product, const cuda::ProductCosts& costs) {
  const Problem& p = product.problem;
  if (product.grouped() || p.paired || p.k_slices < 2 || product.row_blocks() > costs.most_sliced_row_blocks) return {};
  SlicedRoom room;
  room.floats_per_row = apart_floats_per_row(p);
  room.most_rows =
      static_cast<int32_t>(std::min(costs.most_sliced_rows, costs.most_sliced_floats / room.floats_per_row));
  return room;
}

}  // namespace quire::gemm
