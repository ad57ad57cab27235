// Many rows of tokens on GPUs without wgmma, from sm_80 on: persistent blocks of eight warps multiply tiles of 128 rows
// of a weight by up to 128 rows of x with mma.m16n8k16. All warps copy, by cp.async, into a ring that runs ahead over
// the borders of tiles. Weights are decoded in registers as streams do it, and steps follow each other in the same
// order: the same bits.
//
// Four warps are a group. Its warps multiply one or two row tiles each (a fragment of tokens then serves two products)
// by the same rows of x: one half of the tile's, or, where these are few, all, while the other group has the other row
// tiles.
#pragma once

#include "ops/gemm/cuda/copy.cuh"
#include "ops/gemm/cuda/decode.cuh"
#include "ops/gemm/cuda/problem.cuh"
#include "ops/gemm/cuda/tile_epilogue.cuh"
#include "ops/gemm/cuda/tile_walk.cuh"

namespace quire::gemm {

inline constexpr int kMmaThreads = 256;

// With 32 rows of x, eight warps want as many row tiles.
template <class D>
inline constexpr bool kHasNarrowTiles = D::kPlanes == 1;
// Where decoding costs as much as multiplying, it is worth sharing among more rows. (Of bf16, wide tiles are no
// faster.)
template <class D>
inline constexpr bool kHasWideTiles = is_fp4(D::kFormat);

enum class TileKind : uint8_t {
  kPlain,
  kKSlices,  // sums and totals of K slices in registers
  kNarrow,   // at most 32 rows of x, of any number of K slices: more stages
  kWide,     // twice as many rows of x, whose sums take the registers of a second block: one K slice
};

// What a tile is, for each format. Two stages and more leave room for the table of experts in the 99 KiB of shared
// memory that blocks of the smallest GPUs can have, and two blocks fit a multiprocessor of the larger ones.
template <class D, TileKind kKind>
struct MmaTile {
  static constexpr bool kNarrow = kKind == TileKind::kNarrow, kWide = kKind == TileKind::kWide;
  static constexpr bool kTotals = kKind == TileKind::kKSlices || kNarrow;
  static constexpr int kRowTiles = D::kPlanes == 1 ? 8 : 4;
  static constexpr int kMost = kNarrow ? 32 : kWide ? 256 : D::kPlanes == 3 ? 64 : 128;  // rows of x
  static constexpr int kWeightBytes = (kRowTiles * D::kTileBytes + 127) / 128 * 128;
  static constexpr int kStageBytes = kWeightBytes + kMost * 128;
  static constexpr int kFitting = kWide ? 2 : (64 << 10) / kStageBytes, kStages = kFitting < 4 ? kFitting : 4;
  static constexpr int kStagingAt = kStages * kStageBytes;
  static constexpr int kTableAt = kStagingAt + 2 * kStagingBytes;
  static_assert(kStages >= 2);

  // Rows of x that are multiplied for a tile of `count`: each number is code of its own.
  static constexpr bool has(int n) {
    if (kNarrow) return n == 32;
    if (kWide) return n == 128 || n == 256;
    return n <= kMost && (n == 64 || n == 128 || (n == 32 && kHasNarrowTiles<D>));
  }
  __host__ __device__ static constexpr int of(int count) {
    int n = 32;
    while (n < kMost && (n < count || !has(n))) n *= 2;
    return n;
  }
};

template <class D, TileKind kKind>
class MmaMultiplier {
  using M = MmaTile<D, kKind>;

 public:
  __device__ MmaMultiplier(const Problem& p, const TileGrid& grid, uint8_t* shared)
      : p_(p),
        grid_(grid),
        table_(block_table(p, grid.block, shared + M::kTableAt)),
        shared_(shared),
        ring_(shared_address(shared)),
        tiles_(count_tiles(p, grid, table_)),
        lane_(threadIdx.x % 32),
        group_(threadIdx.x / 128),
        warp_(threadIdx.x / 32 % 4) {}

  __device__ void run() {
    go_to(static_cast<int32_t>(blockIdx.x));
    for (int i = 0; i < M::kStages - 1; ++i) fetch_next();
    for (auto i = static_cast<int32_t>(blockIdx.x); i < tiles_; i += static_cast<int32_t>(gridDim.x)) {
      const Tile t = find_tile<M::kRowTiles>(p_, grid_, table_, i);
      const int width = M::of(t.rows.count);
      if constexpr (M::has(32)) {
        if (width == 32) multiply<32>(t);
      }
      if constexpr (M::has(64)) {
        if (width == 64) multiply<64>(t);
      }
      if constexpr (M::has(128)) {
        if (width == 128) multiply<128>(t);
      }
      if constexpr (M::has(256)) {
        if (width == 256) multiply<256>(t);
      }
    }
  }

 private:
  // ---- Copying

  struct Load {
    int32_t index;     // of the tile; tiles_ and more: nothing is left
    int32_t col, end;  // column tiles that are left of it
    int32_t row_tiles;
    const uint8_t* weight;  // of its first row tile, column tile 0
    RowBlock rows;
  };
  __device__ void go_to(int32_t index) {
    load_.index = index;
    if (index >= tiles_) return;
    const Tile t = find_tile<M::kRowTiles>(p_, grid_, table_, index);
    load_.col = t.begin;
    load_.end = t.end;
    load_.row_tiles = t.row_tiles;
    load_.weight = t.weight + static_cast<int64_t>(t.row_tile) * p_.col_tiles * D::kTileBytes;
    load_.rows = t.rows;
  }
  // Copies the next column tile, if there is one. It is a group in any case, so that waiting can count.
  __device__ void fetch_next() {
    if (load_.index < tiles_) {
      const uint32_t to = ring_ + load_slot_ * M::kStageBytes;
      copy_weights(to);
      copy_tokens(to + M::kWeightBytes);
      if (++load_.col == load_.end) go_to(load_.index + static_cast<int32_t>(gridDim.x));
      if (++load_slot_ == M::kStages) load_slot_ = 0;
    }
    commit_copies();
  }
  // A warp, or two, for each row tile.
  __device__ void copy_weights(uint32_t to) const {
    const int row_tile = threadIdx.x / 32 % M::kRowTiles;
    if (row_tile >= load_.row_tiles) return;
    const uint8_t* from = load_.weight + (static_cast<int64_t>(row_tile) * p_.col_tiles + load_.col) * D::kTileBytes;
    for (int i = static_cast<int>(threadIdx.x / 32 / M::kRowTiles * 32 + lane_) * 16; i < D::kTileBytes;
         i += kMmaThreads / M::kRowTiles * 16)
      copy_async_16(to + row_tile * D::kTileBytes + i, from + i, true);
  }
  // Rows of 128 bytes, the eight pieces of one exchanged by its number. What lies outside of x becomes zeros: weights
  // beyond the last column are zeros too, and 0 * NaN would not be.
  __device__ void copy_tokens(uint32_t to) const {
    const int first = threadIdx.x / 8, piece = threadIdx.x % 8, width = M::of(load_.rows.count);
    const int32_t col = load_.col * kTileCols + piece * 8;
    const __nv_bfloat16* from = p_.x + (load_.rows.begin + first) * p_.x_stride + col;
    for (int row = first; row < width; row += kMmaThreads / 8, from += kMmaThreads / 8 * p_.x_stride) {
      const bool valid = row < load_.rows.count && col < p_.cols;
      copy_async_16(to + row * 128 + (piece ^ (row & 7)) * 16, valid ? from : p_.x, valid);
    }
  }

  // ---- Products

  // A warp's share of a tile of N rows of x.
  template <int N>
  struct Share {
    static constexpr bool kHalves = N > 32;  // groups have a half of the rows of x each
    static constexpr int kTokens = kHalves ? N / 2 : N;
    static constexpr int kRowTiles = kHalves ? M::kRowTiles / 4 : 1;  // four apart from each other
    float sum[kRowTiles][kTokens / 2];
  };

  // Step J (16 columns) of the column tile, the tokens of which are at `tokens`.
  template <int N, int J, int P>
  __device__ __forceinline__ void planes(Share<N>& s, const typename D::Regs (&regs)[Share<N>::kRowTiles],
                                         const uint32_t (&b)[Share<N>::kTokens / 16][4]) const {
#pragma unroll
    for (int r = 0; r < Share<N>::kRowTiles; ++r) {
      uint32_t a[4];
      D::template fragment<false, J, P>(regs[r], a);
#pragma unroll
      for (int i = 0; i < Share<N>::kTokens / 8; ++i)
        cuda::mma_bf16(reinterpret_cast<float(&)[4]>(s.sum[r][4 * i]), a, b[i / 2][i % 2 * 2], b[i / 2][i % 2 * 2 + 1]);
    }
    if constexpr (P + 1 < D::kPlanes) planes<N, J, P + 1>(s, regs, b);
  }
  template <int N, int J>
  __device__ __forceinline__ void steps(Share<N>& s, const typename D::Regs (&regs)[Share<N>::kRowTiles],
                                        uint32_t tokens) const {
    uint32_t b[Share<N>::kTokens / 16][4];
#pragma unroll
    for (int i = 0; i < Share<N>::kTokens / 16; ++i) cuda::load_matrices(b[i], (tokens ^ (J * 32)) + i * 2048);
    planes<N, J, 0>(s, regs, b);
    if constexpr (J < 3) steps<N, J + 1>(s, regs, tokens);
  }
  template <int N>
  __device__ __forceinline__ void multiply_stage(Share<N>& s, uint32_t stage) const {
    typename D::Regs regs[Share<N>::kRowTiles];
#pragma unroll
    for (int r = 0; r < Share<N>::kRowTiles; ++r)
      regs[r] = D::load(stage + (first_row_tile<N>() + 4 * r + warp_) * D::kTileBytes, lane_);
    // Of 16 rows of x by 16 columns: rows 0-7, columns 0-7 and 8-15, then rows 8-15. The tile of tokens is aligned to
    // 128 bytes, so pieces are exchanged by xor.
    const int row = lane_ / 16 * 8 + lane_ % 8;
    steps<N, 0>(s, regs,
                stage + M::kWeightBytes + (first_token<N>() + row) * 128 + ((lane_ / 8 % 2) ^ (lane_ & 7)) * 16);
  }
  template <int N>
  __device__ int first_token() const {
    return Share<N>::kHalves ? group_ * Share<N>::kTokens : 0;
  }
  template <int N>
  __device__ int first_row_tile() const {  // of the group, within the tile
    return Share<N>::kHalves ? 0 : group_ * 4;
  }

  template <int N>
  __device__ __forceinline__ void multiply(const Tile& t) {
    Share<N> s;
    constexpr int kSums = Share<N>::kTokens / 2;
    float total[Share<N>::kRowTiles][M::kTotals ? kSums : 1];
#pragma unroll
    for (int r = 0; r < Share<N>::kRowTiles; ++r) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        s.sum[r][i] = 0;
        if constexpr (M::kTotals) total[r][i] = 0;
      }
    }
    for (int32_t left = t.end - t.begin; left > 0;) {
      for (int32_t c = min(p_.k_slice_tiles, left); c > 0; --c, --left) {
        wait_copies<M::kStages - 2>();
        __syncthreads();  // the stage is there for all, and all have left the one before
        fetch_next();
        multiply_stage<N>(s, ring_ + slot_ * M::kStageBytes);
        if (++slot_ == M::kStages) slot_ = 0;
      }
      if constexpr (M::kTotals) {
        // The first sum is added to zero, which changes the sign of a zero at most, and the bias undoes that.
#pragma unroll
        for (int r = 0; r < Share<N>::kRowTiles; ++r) {
#pragma unroll
          for (int i = 0; i < kSums; ++i) {
            total[r][i] = __fadd_rn(total[r][i], s.sum[r][i]);
            s.sum[r][i] = left > 0 ? 0 : total[r][i];
          }
        }
      }
    }
    store<N>(t, s);
  }

  // Where K is sliced: the sums of the K slice that begins with the tile's first column.
  template <int N>
  __device__ __forceinline__ void store(const Tile& t, const Share<N>& s) const {
    const int first = first_token<N>();
    const RowBlock rows{t.rows.expert, t.rows.begin + first, min(t.rows.count - first, Share<N>::kTokens)};
    if (rows.count <= 0) return;
    if (grid_.k_slices > 1) {
#pragma unroll
      for (int r = 0; r < Share<N>::kRowTiles; ++r) {
        const int32_t row_tile = t.row_tile + first_row_tile<N>() + 4 * r;
        if (row_tile < t.part->row_tiles)
          store_apart<Share<N>::kTokens>(
              grid_.apart.at + grid_.apart.place(t.begin / p_.k_slice_tiles, t.first_group + row_tile / kGroupRowTiles,
                                                 rows.begin / 8),
              rows.count, s.sum[r]);
      }
      return;
    }
#pragma unroll
    for (int r = 0; r < Share<N>::kRowTiles; ++r) {
      const int32_t row_tile = t.row_tile + first_row_tile<N>() + 4 * r;
      const TileOutput out{
          p_,    *t.part, rows, row_tile + warp_, row_tile, lane_, shared_ + M::kStagingAt + group_ * kStagingBytes,
          group_};
      if (r > 0) out.meet();  // the buffers are free
      out.template store<Share<N>::kTokens>(s.sum[r], D::kUnit);
    }
  }

  const Problem& p_;
  const TileGrid& grid_;
  const BlockTable table_;
  uint8_t* shared_;
  const uint32_t ring_;
  const int32_t tiles_;
  const int lane_, group_, warp_;
  Load load_{};
  int load_slot_ = 0, slot_ = 0;
};

// One block a multiprocessor where sums take most of the registers.
template <TileKind kKind>
inline constexpr int kMmaBlocks = kKind == TileKind::kPlain || kKind == TileKind::kNarrow ? 2 : 1;

template <class D, TileKind kKind>
__global__ void __launch_bounds__(kMmaThreads, kMmaBlocks<kKind>)
    tile_mma_kernel(const __grid_constant__ Problem p, const __grid_constant__ TileGrid grid) {
  if constexpr (cuda::kForWgmma) {
    __trap();  // never launched: launch_tiles
  } else {
    extern __shared__ __align__(1024) uint8_t shared[];
    cuda::begin_kernel();
    if (p.offsets != nullptr)
      fill_block_table(p, grid.block, block_table(p, grid.block, shared + MmaTile<D, kKind>::kTableAt));
    MmaMultiplier<D, kKind>(p, grid, shared).run();
  }
}

}  // namespace quire::gemm
