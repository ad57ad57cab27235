// Which tile of a product is which, and which block of threads takes it: what the tile kernels walk over.
#pragma once

#include "ops/gemm/cuda/problem.cuh"

namespace quire::gemm {

// Where the sums of each K slice are left, apart from each other, for another kernel to add: [K slices][groups][eights]
// [128] float4. A group is four row tiles of one part, an eight is eight rows of x, and the 128 are the lanes of four
// warps, which hold the sums so (Wgmma, and mma.m16n8k16 for a warp): a store is 2 KiB in one piece, and nothing is
// exchanged.
struct ApartSums {
  float4* at;
  int32_t groups, eights;  // of all parts; of all rows of x

  __host__ __device__ int64_t place(int32_t k_slice, int32_t group, int32_t eight) const {
    return ((static_cast<int64_t>(k_slice) * groups + group) * eights + eight) * 128;
  }
};
inline constexpr int kGroupRowTiles = 4;
__host__ __device__ inline int32_t groups_of(const Part& part) {
  return (part.row_tiles + kGroupRowTiles - 1) / kGroupRowTiles;
}

// Of a product whose K slices are apart.
inline ApartSums apart_sums(const Problem& p, float* at) {
  ApartSums sums{reinterpret_cast<float4*>(at), 0, (p.rows + 7) / 8};
  for (int i = 0; i < p.part_count; ++i) sums.groups += groups_of(p.part[i]);
  return sums;
}

struct TileGrid {
  int32_t block;       // rows of x in a tile, at most; a multiple of eight
  int32_t k_slices;    // 1, or the K slices: each is work of its own, and its sums are left in `apart`
  int32_t row_blocks;  // of kRowTiles row tiles, of all parts
  bool dealt;          // dense: blocks of threads take equal shares (DealtTiles) instead of tiles in turn
  ApartSums apart;
};

struct Tile {
  const Part* part;
  const uint8_t* weight;  // its first tile, column tile 0
  int32_t row_tile, row_tiles;
  int32_t begin, end;   // column tiles
  int32_t first_group;  // of the part: ApartSums
  RowBlock rows;
};

__device__ inline int32_t count_tiles(const Problem& p, const TileGrid& grid, const BlockTable& table) {
  return count_blocks(p, grid.block, table) * grid.row_blocks * grid.k_slices;
}

// A tile with all its columns. Grouped: an expert's rows of weights in turn, so that its tokens stay in the L2. Dense:
// eight blocks of tokens by all rows of the weight, then the next eight: tiles that run at the same time form a square.
template <int kRowTiles>
__device__ inline Tile find_whole_tile(const Problem& p, const TileGrid& grid, const BlockTable& table, int32_t index) {
  int32_t row_block, block;
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
  Tile t;
  t.first_group = 0;
  int i = 0;
  for (; i + 1 < p.part_count; ++i) {
    const int32_t own = (p.part[i].row_tiles + kRowTiles - 1) / kRowTiles;
    if (row_block < own) break;
    row_block -= own;
    t.first_group += groups_of(p.part[i]);
  }
  t.rows = find_block(p, grid.block, table, block);
  t.part = &p.part[i];
  t.row_tile = row_block * kRowTiles;
  t.row_tiles = min(kRowTiles, t.part->row_tiles - t.row_tile);
  t.weight = t.part->weight + t.rows.expert * t.part->expert_bytes;
  t.begin = 0;
  t.end = p.col_tiles;
  return t;
}
// Where K is sliced: a K slice of one.
template <int kRowTiles>
__device__ inline Tile find_tile(const Problem& p, const TileGrid& grid, const BlockTable& table, int32_t index) {
  const int32_t k_slice = index % grid.k_slices;
  Tile t = find_whole_tile<kRowTiles>(p, grid, table, index / grid.k_slices);
  if (grid.k_slices > 1) {
    t.begin = k_slice * p.k_slice_tiles;
    t.end = min(t.begin + p.k_slice_tiles, p.col_tiles);
  }
  return t;
}

// ---- Equal shares. All tiles' columns lie behind each other, in units of a column tile (a K slice where sliced),
// and block of threads b takes units [share_begin(b), share_begin(b + 1)), so a tile may be cut between blocks.

__host__ __device__ inline int64_t share_begin(int64_t units, int32_t blocks, int32_t b) {
  return units * b / blocks;
}
// What a block of threads multiplies, in order. Shares are walked from their end: where K is not sliced the tile that
// the share ends within comes first, and the next block's walk ends with the rest of it, when the sums so far have long
// been handed over.
template <int kRowTiles>
class TileWalk {
 public:
  // Columns of a tile: of a whole one's units, or of its K slices.
  struct Piece {
    int32_t tile, begin, end;
  };

  __device__ TileWalk(const Problem& p, const TileGrid& grid, const BlockTable& table)
      : p_(p), grid_(grid), table_(table) {
    const int32_t tiles = count_tiles(p, grid, table);
    if (!grid.dealt) {
      at_ = static_cast<int32_t>(blockIdx.x);
      end_ = tiles;
      return;
    }
    const int64_t units = grid.k_slices > 1 ? tiles : int64_t{tiles} * p.col_tiles;
    const auto b = static_cast<int32_t>(blockIdx.x), blocks = static_cast<int32_t>(gridDim.x);
    at_ = static_cast<int32_t>(share_begin(units, blocks, b));
    end_ = static_cast<int32_t>(share_begin(units, blocks, b + 1));
  }

  __device__ bool next(Piece& piece) {
    if (at_ >= end_) return false;
    const int32_t each = grid_.k_slices > 1 ? grid_.k_slices : grid_.dealt ? p_.col_tiles : 1;
    int32_t from = at_, end = at_ + 1;
    if (grid_.dealt) {
      end = end_;
      const int32_t first = (end - 1) / each * each;
      from = max(at_, first);
      end_ = from;
    } else {
      at_ += static_cast<int32_t>(gridDim.x);
    }
    piece.tile = from / each;
    piece.begin = from - piece.tile * each;
    piece.end = end - piece.tile * each;
    return true;
  }

  __device__ Tile tile(const Piece& piece) const {
    Tile t = find_whole_tile<kRowTiles>(p_, grid_, table_, piece.tile);
    if (grid_.k_slices > 1) {
      t.begin = piece.begin * p_.k_slice_tiles;
      t.end = min(piece.end * p_.k_slice_tiles, p_.col_tiles);
    } else if (grid_.dealt) {
      t.begin = piece.begin;
      t.end = piece.end;
    }
    return t;
  }

 private:
  const Problem& p_;
  const TileGrid& grid_;
  const BlockTable table_;
  int32_t at_, end_;  // tiles, or K slices, or units of a share that are left
};

}  // namespace quire::gemm
