// Which tile of a product is which: what both tile kernels walk over.
#pragma once

#include "ops/gemm/cuda/problem.cuh"

namespace quire::gemm {

struct TileGrid {
  int32_t block;  // rows of x in a tile, at most
  int32_t
      splits;  // 1, or the segments: each is a tile of its own, and its sums are what is stored, in rows of their own
  int32_t row_blocks;  // of kRowTiles row tiles, of all parts
};

struct Tile {
  const KernelPart* part;
  const uint8_t* weight;  // its first tile, column tile 0
  int32_t row_tile, row_tiles;
  int32_t begin, end;  // column tiles
  int32_t first_row;   // of y
  RowBlock rows;
};

__device__ inline int32_t count_tiles(const Problem& p, const TileGrid& grid, const BlockTable& table) {
  return count_blocks(p, grid.block, table) * grid.row_blocks * grid.splits;
}

// Grouped: an expert's rows of weights in turn, so that its tokens stay in the L2. Dense: eight blocks of tokens by all rows
// of the weight, then the next eight: tiles that run at the same time form a square.
template <int kRowTiles>
__device__ inline Tile find_tile(const Problem& p, const TileGrid& grid, const BlockTable& table,
                                 int32_t index) {
  int32_t row_block, block;
  const int32_t split = index % grid.splits;
  index /= grid.splits;
  if (p.offsets != nullptr) {
    row_block = index % grid.row_blocks;
    block = index / grid.row_blocks;
  } else {
    const int32_t blocks = (p.rows + grid.block - 1) / grid.block;
    const int32_t group = index / (8 * grid.row_blocks), width = min(8, blocks - 8 * group);
    const int32_t within = index - 8 * group * grid.row_blocks;
    row_block = within / width;
    block = 8 * group + within % width;
  }
  int i = 0;
  for (; i + 1 < p.part_count; ++i) {
    const int32_t own = (p.part[i].row_tiles + kRowTiles - 1) / kRowTiles;
    if (row_block < own) break;
    row_block -= own;
  }
  Tile t;
  t.rows = find_block(p, grid.block, table, block);
  t.part = &p.part[i];
  t.row_tile = row_block * kRowTiles;
  t.row_tiles = min(kRowTiles, t.part->row_tiles - t.row_tile);
  t.weight = t.part->weight + t.rows.expert * t.part->expert_bytes;
  t.begin = split * p.segment_tiles;
  t.end = grid.splits > 1 ? min(t.begin + p.segment_tiles, p.col_tiles) : p.col_tiles;
  t.first_row = split * p.rows;
  return t;
}

}  // namespace quire::gemm
