// Many rows of tokens in FP4 by weights in NVFP4 or MXFP4, on tensor cores that take both (mma_fp4.cuh): persistent
// blocks of eight warps multiply tiles of 128 rows of a weight by up to 256 rows of x. All warps copy, by cp.async,
// into a ring that runs ahead over the borders of tiles. Rows of x may be sorted by expert.
//
// K is one float32 accumulator of the tensor cores, walked in ascending steps of 64 columns; its sum is multiplied by
// the row's factor. So a row's bits depend on that row alone.
//
// Four warps are a group. Its warps multiply one or two row tiles each (what is loaded of tokens then serves two
// products) by one half of the tile's rows of x; where these are 32 by all of them, while the other group has the other
// row tiles.
#pragma once

#include "ops/gemm/cuda/copy.cuh"
#include "ops/gemm/cuda/mma_fp4.cuh"
#include "ops/gemm/cuda/problem.cuh"
#include "ops/gemm/cuda/quantize_fp4.cuh"
#include "ops/gemm/cuda/tile_epilogue.cuh"
#include "ops/gemm/cuda/tile_walk.cuh"

namespace quire::gemm::fp4 {

inline constexpr int kThreads = 256;

// As copy_async_16.
__device__ inline void copy_async_4(uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" : : "r"(to), "l"(from), "r"(valid ? 4 : 0));
}

// A stage is one column tile: [8 row tiles] of weights, tokens [kMost][32], scales of tokens [kMost]. Two blocks fit
// the 100 KiB of a multiprocessor of 12.x, or one with twice as many rows of x.
template <TileFormat F, bool kWide>
struct Layout {
  static constexpr int kTileBytes = tile_bytes(F);
  static constexpr int kMost = kWide ? 256 : 128;  // rows of x
  static constexpr int kTokensAt = kTileRowTiles * kTileBytes, kScalesAt = kTokensAt + kMost * 32;
  static constexpr int kStageBytes = kScalesAt + kMost * 4;
  static constexpr int kStages = kWide ? 4 : 3;
  static constexpr int kStagingAt = kStages * kStageBytes;
  static constexpr int kTableAt = kStagingAt + 2 * kStagingBytes;
  static_assert(kTokensAt % 16 == 0 && kStageBytes % 16 == 0 && kStagingAt % 128 == 0);

  // Rows of x that are multiplied for a tile of `count`: each number is code of its own.
  static constexpr bool has(int n) { return kWide ? n == 256 : n == 32 || n == 64 || n == 128; }
  __host__ __device__ static constexpr int of(int count) {
    if (kWide) return 256;
    return count <= 32 ? 32 : count <= 64 ? 64 : 128;
  }
};

template <TileFormat F, bool kWide>
class Multiplier {
  using L = Layout<F, kWide>;

 public:
  __device__ Multiplier(const Problem& p, const TileGrid& grid, const RoundedRows& x, uint8_t* shared)
      : p_(p),
        grid_(grid),
        x_(x),
        table_(block_table(p, grid.block, shared + L::kTableAt)),
        shared_(shared),
        ring_(shared_address(shared)),
        tiles_(count_tiles(p, grid, table_)),
        lane_(threadIdx.x % 32),
        group_(threadIdx.x / 128),
        warp_(threadIdx.x / 32 % 4) {}

  __device__ void run() {
    go_to(static_cast<int32_t>(blockIdx.x));
    for (int i = 0; i < L::kStages - 1; ++i) fetch_next();
    for (auto i = static_cast<int32_t>(blockIdx.x); i < tiles_; i += static_cast<int32_t>(gridDim.x)) {
      const Tile t = find_tile<kTileRowTiles>(p_, grid_, table_, i);
      const int width = L::of(t.rows.count);
      if constexpr (L::has(32)) {
        if (width == 32) multiply<32>(t);
      }
      if constexpr (L::has(64)) {
        if (width == 64) multiply<64>(t);
      }
      if constexpr (L::has(128)) {
        if (width == 128) multiply<128>(t);
      }
      if constexpr (L::has(256)) {
        if (width == 256) multiply<256>(t);
      }
    }
  }

 private:
  // A warp's share of a tile of N rows of x.
  template <int N>
  struct Share {
    static constexpr bool kHalves = N > 32;  // groups have a half of the rows of x each
    static constexpr int kTokens = kHalves ? N / 2 : N, kEights = kTokens / 8;
    static constexpr int kRowTiles = kHalves ? 2 : 1;  // four apart from each other
    float sum[kRowTiles][kTokens / 2];
  };

  // ---- Copying

  // Where this thread's next pieces come from.
  struct Load {
    int32_t index;          // of the tile; tiles_ and more: nothing is left
    int32_t left;           // of its column tiles
    int32_t count;          // of its rows of x
    const uint8_t* weight;  // null: of no row tile
    uint32_t row;           // of all rows of all column tiles
  };
  __device__ void go_to(int32_t index) {
    load_.index = index;
    if (index >= tiles_) return;
    const Tile t = find_tile<kTileRowTiles>(p_, grid_, table_, index);
    const int row_tile = group_ * 4 + warp_;
    load_.left = t.end - t.begin;
    load_.count = t.rows.count;
    load_.weight = row_tile >= t.row_tiles
                       ? nullptr
                       : t.weight +
                             (static_cast<int64_t>(t.row_tile + row_tile) * p_.col_tiles + t.begin) * L::kTileBytes +
                             lane_ * 16;
    load_.row = static_cast<uint32_t>(t.begin * x_.row_stride + t.rows.begin);
  }
  // Copies the next column tile, if there is one. It is a group in any case, so that waiting can count.
  __device__ void fetch_next() {
    if (load_.index < tiles_) {
      const uint32_t to = ring_ + load_slot_ * L::kStageBytes;
      copy_weights(to);
      copy_tokens(to);
      if (--load_.left == 0) go_to(load_.index + static_cast<int32_t>(gridDim.x));
      if (++load_slot_ == L::kStages) load_slot_ = 0;
    }
    commit_copies();
  }
  // A warp for each row tile: its lanes' codes, then its scales.
  __device__ void copy_weights(uint32_t to) {
    if (load_.weight == nullptr) return;
    to += (group_ * 4 + warp_) * L::kTileBytes;
    copy_async_16(to + place_of_lane(lane_) * 16, load_.weight, true);
    if (lane_ < (L::kTileBytes - 512) / 16) copy_async_16(to + 512 + lane_ * 16, load_.weight + 512, true);
    load_.weight += L::kTileBytes;
  }
  // Rows past the last count as zeros.
  __device__ void copy_tokens(uint32_t to) {
    const int width = L::of(load_.count), own = threadIdx.x;
#pragma unroll
    for (int first = 0; first < 2 * L::kMost; first += kThreads) {
      const int piece = first + own;
      const bool valid = piece / 2 < load_.count;
      if (piece < 2 * width)
        copy_async_16(to + L::kTokensAt + piece * 16,
                      reinterpret_cast<const uint4*>(x_.codes) + (valid ? load_.row * 2 + piece : 0), valid);
    }
    if (own < width) {
      const bool valid = own < load_.count;
      copy_async_4(to + L::kScalesAt + place_of_scale(own, width) * 4, x_.scales + (valid ? load_.row + own : 0),
                   valid);
    }
    load_.row += static_cast<uint32_t>(x_.row_stride);
  }
  // A lane's scales lie together: of rows that are eight apart, for each half of the rows.
  __device__ static int place_of_scale(int row, int width) {
    const int tokens = width > 32 ? width / 2 : width, of_half = row & (tokens - 1);
    return row - of_half + of_half % 8 * (tokens / 8) + of_half / 8;
  }

  // ---- Products

  template <int N>
  __device__ int first_token() const {
    return Share<N>::kHalves ? group_ * Share<N>::kTokens : 0;
  }
  template <int N>
  __device__ int first_row_tile() const {  // of the group, within the tile
    return Share<N>::kHalves ? 0 : group_ * 4;
  }

  template <int N>
  __device__ __forceinline__ void multiply_stage(Share<N>& s, uint32_t stage) const {
    using S = Share<N>;
    Weights a[S::kRowTiles];
#pragma unroll
    for (int r = 0; r < S::kRowTiles; ++r)
      a[r] = load_weights<F>(stage + (first_row_tile<N>() + 4 * r + warp_) * L::kTileBytes, lane_);
    const uint32_t tokens = stage + L::kTokensAt + first_token<N>() * 32 + lane_ * 8;
    const uint32_t scales = stage + L::kScalesAt + (first_token<N>() + lane_ / 4 * S::kEights) * 4;
#pragma unroll
    for (int four = 0; four < S::kEights; four += 4) {
      const uint4 v = load_shared_128(scales + four * 4);
      const uint32_t of[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint2 b = load_shared_64(tokens + (four + i) * 256);
#pragma unroll
        for (int r = 0; r < S::kRowTiles; ++r)
          multiply_fp4<F>(reinterpret_cast<float(&)[4]>(s.sum[r][4 * (four + i)]), a[r].codes, b, a[r].scales, of[i]);
      }
    }
  }

  template <int N>
  __device__ __forceinline__ void multiply(const Tile& t) {
    Share<N> s;
#pragma unroll
    for (auto& sums : s.sum)
#pragma unroll
      for (float& v : sums) v = 0;
    for (int32_t c = t.begin; c < t.end; ++c) {
      wait_copies<L::kStages - 2>();
      __syncthreads();  // the stage is there for all, and all have left the one before
      fetch_next();
      multiply_stage<N>(s, ring_ + slot_ * L::kStageBytes);
      if (++slot_ == L::kStages) slot_ = 0;
    }
    store<N>(t, s);
  }

  template <int N>
  __device__ __forceinline__ void store(const Tile& t, Share<N>& s) const {
    using S = Share<N>;
    const int first = first_token<N>();
    const RowBlock rows{t.rows.expert, t.rows.begin + first, min(t.rows.count - first, S::kTokens)};
    if (rows.count <= 0) return;
#pragma unroll
    for (int i = 0; i < S::kTokens / 4; ++i) {  // of rows 8 (i / 2) + 2 t + i % 2
      const int row = i / 2 * 8 + lane_ % 4 * 2 + i % 2;
      const float factor = row < rows.count ? x_.factors[rows.begin + row] : 0.0f;
#pragma unroll
      for (int r = 0; r < S::kRowTiles; ++r) {
        float* const at = &s.sum[r][i / 2 * 4 + i % 2];
        at[0] = __fmul_rn(at[0], factor);
        at[2] = __fmul_rn(at[2], factor);
      }
    }
#pragma unroll
    for (int r = 0; r < S::kRowTiles; ++r) {
      const int32_t row_tile = t.row_tile + first_row_tile<N>() + 4 * r;
      const TileOutput out{
          p_,    *t.part, rows, row_tile + warp_, row_tile, lane_, shared_ + L::kStagingAt + group_ * kStagingBytes,
          group_};
      if (r > 0) out.meet();  // the buffers are free
      out.template store<S::kTokens>(s.sum[r], 1.0f);
    }
  }

  const Problem& p_;
  const TileGrid& grid_;
  const RoundedRows& x_;
  const BlockTable table_;
  uint8_t* shared_;
  const uint32_t ring_;
  const int32_t tiles_;
  const int lane_, group_, warp_;
  Load load_{};
  int load_slot_ = 0, slot_ = 0;
};

template <TileFormat F, bool kWide>
__global__ void __launch_bounds__(kThreads, kWide ? 1 : 2)
    fp4_tiles(const __grid_constant__ Problem p, const __grid_constant__ TileGrid grid,
              const __grid_constant__ RoundedRows x) {
  if constexpr (cuda::kHasFp4) {
    extern __shared__ __align__(1024) uint8_t shared[];
    cuda::begin_kernel();
    if (p.offsets != nullptr)
      fill_block_table(p, grid.block, block_table(p, grid.block, shared + Layout<F, kWide>::kTableAt));
    Multiplier<F, kWide>(p, grid, x, shared).run();
  } else {
    __trap();  // never launched
  }
}

}  // namespace quire::gemm::fp4
