// Few rows of tokens: weights stream through rings of shared memory that belong to one warp each, and are multiplied by
// mma.m16n8k16 with the tokens as its eight columns. Warps wait for nobody but their own copies.
//
// A unit of work is a row tile (16 rows of a weight, all of K) times a block of at most 8 kGroups rows of x. If K has
// several K slices, up to eight warps (a team) share a unit, each with its own K slices, and one of them adds them up
// in order. Units are numbered through, block of rows by block of rows, and every thread block takes equally many that
// follow each other, its teams one each at a time. A block's rows of x lie in shared memory, whole, and the next
// block's are fetched meanwhile; where they do not fit they come through the rings, with the weights.
#pragma once

#include "ops/gemm/cuda/copy.cuh"
#include "ops/gemm/cuda/problem.cuh"
#include "ops/gemm/cuda/warp_products.cuh"

namespace quire::gemm {

struct StreamPlan {
  int32_t warps;        // of a block
  int32_t team;         // warps that share a unit: a power of two that divides `warps`
  int32_t chunk_tiles;  // column tiles of a stage: a power of two that divides the K slice
  int32_t x_rows;       // rows of x that a buffer, or a stage, has room for
  int32_t x_pitch;  // bytes from one to the next: 16 more than a multiple of 128, so that ldmatrix meets no bank twice
  int32_t x_buffers;  // of whole rows: 2, 1 if there is one block of rows, 0: through the rings
  int32_t stage_bytes;
  int32_t x_at, sums_at, table_at, barriers_at;  // in shared memory, behind the rings
  int32_t shared_bytes;
};

inline constexpr int kStages = 4;
// Barriers: of each buffer of x, full and free; then of each warp's ring.
inline int stream_barrier_bytes(int warps) {
  return 8 * (4 + warps * kStages);
}
// Small tiles leave the multiplying as the bottleneck: more warps hide its latencies.
template <class D>
inline constexpr int kStreamThreads = D::kTileBytes < 1024 ? 512 : 256;

// The units [first, end) of a thread block; a team takes one, then that which follows so many as there are teams.
struct Range {
  int32_t per_rows;  // units of a block of rows
  int32_t first, end;

  __device__ Range(int32_t row_blocks, int32_t units) : per_rows(units) {
    const int64_t all = static_cast<int64_t>(row_blocks) * units;
    first = static_cast<int32_t>(all * blockIdx.x / gridDim.x);
    end = static_cast<int32_t>(all * (blockIdx.x + 1) / gridDim.x);
  }
  __device__ int32_t row_block(int32_t unit) const { return unit / per_rows; }
};

// Where a warp is in its range: at a unit, which is a row tile times a block of rows. From the end of the range on
// nothing is left.
struct StreamPlace {
  int32_t unit, row_block;
  int32_t index;  // of the units of the block of rows
  RowBlock rows;
};

// What is copied next.
struct StreamWalk {
  StreamPlace at;
  int32_t k_slice, tile, end;  // column tiles [tile, end) of the K slice are left
  const uint8_t* weight;       // the unit's first tile
};

template <class D, int kGroups>
class StreamWarp {
 public:
  static constexpr int kBlock = 8 * kGroups;

  __device__ StreamWarp(const Problem& problem, const StreamPlan& plan, uint8_t* shared, const Range& range,
                        const BlockTable& table)
      : p_(problem),
        plan_(plan),
        range_(range),
        table_(table),
        lane_(threadIdx.x % 32),
        warp_(threadIdx.x / 32),
        products_(lane_, {lane_, plan.x_rows, plan.x_pitch}) {
    member_ = warp_ % plan.team;
    team_ = warp_ / plan.team;
    // Where all teams would not have work to the end, fewer have: they take as many turns, and go faster.
    const int32_t units = range.end - range.first, most = plan.warps / plan.team, turns = (units + most - 1) / most;
    teams_ = turns == 0 ? most : (units + turns - 1) / turns;
    ring_ = shared_address(shared) + warp_ * kStages * plan.stage_bytes;
    x_ = shared_address(shared) + plan.x_at;
    sums_ =
        reinterpret_cast<float*>(shared + plan.sums_at) + static_cast<int64_t>(team_) * 2 * p_.k_slices * (16 * kBlock);
    barriers_ = shared_address(shared) + plan.barriers_at;
    load_.at = first_place();
    settle();
  }

  __device__ void init_barriers() const {
    for (int s = lane_; s < kStages; s += 32) barrier_init(full(s), kCopyArrivals);
    if (warp_ == 0 && lane_ < 2) {
      barrier_init(x_full(lane_), kCopyArrivals);
      barrier_init(x_free(lane_), plan_.warps);
    }
  }

  // What may come before the kernel before this one has ended: weights, once it is known which.
  __device__ void prefetch() {
    const StreamWalk begin = load_;
    for (int s = 0; s < kStages && load_.at.unit < range_.end; ++s) {
      copy_weights(s);
      advance();
    }
    prefetched_ = true;
    load_ = begin;
  }

  __device__ void run() {
    if (plan_.x_buffers > 0 && warp_ == 0 && range_.first < range_.end) fetch_rows(range_.row_block(range_.first), 0);
    for (int s = 0; s < kStages; ++s) fill(s, prefetched_);
    // All warps go through all blocks of rows of the range, also those that they have no unit of.
    int32_t turn = 0, unit_turn = 0;
    const auto go_to_rows = [&](int32_t of_range) {
      for (; turn < of_range; enter_rows(++turn)) leave_rows(turn);
    };
    if (range_.first < range_.end) enter_rows(0);
    int stage = 0;
    uint32_t phase = 0;
    bool emptied = false;  // a stage was multiplied
    for (StreamPlace at = first_place(); at.unit < range_.end; move(at)) {
      go_to_rows(at.row_block - range_.row_block(range_.first));
      const uint32_t x = x_ + (turn & 1) * plan_.x_rows * plan_.x_pitch;
      const Results results = results_of(at);
      for (int32_t k_slice = member_; k_slice < p_.k_slices; k_slice += plan_.team) {
        products_.clear();
        const int32_t end = min((k_slice + 1) * p_.k_slice_tiles, p_.col_tiles);
        for (int32_t tile = k_slice * p_.k_slice_tiles; tile < end; tile += plan_.chunk_tiles) {
          barrier_wait(full(stage), phase);
          __syncwarp();
          // The stage that was multiplied before this one is free: all lanes have passed the barrier above.
          if (emptied) fill(stage == 0 ? kStages - 1 : stage - 1, false);
          emptied = true;
          const uint32_t weights = ring_ + stage * plan_.stage_bytes;
          const uint32_t own = weights + plan_.chunk_tiles * D::kTileBytes;
          const int tiles = min(plan_.chunk_tiles, end - tile);
          if (plan_.x_buffers == 0) clear_tail(own, tile, tiles);
          products_.multiply(weights, plan_.x_buffers > 0 ? x + tile * 128 : own, tiles);
          if (++stage == kStages) stage = 0, phase ^= 1u;
        }
        if (p_.k_slices > 1) products_.put(sums(unit_turn, k_slice));
      }
      finish(results, unit_turn++);
    }
    if (range_.first < range_.end) go_to_rows(range_.row_block(range_.end - 1) - range_.row_block(range_.first));
  }

 private:
  __device__ uint32_t x_full(int buffer) const { return barriers_ + 8 * buffer; }
  __device__ uint32_t x_free(int buffer) const { return barriers_ + 16 + 8 * buffer; }
  __device__ uint32_t full(int stage) const { return barriers_ + 32 + 8 * (warp_ * kStages + stage); }

  __device__ StreamPlace first_place() const {
    StreamPlace at{team_ < teams_ ? range_.first + team_ : range_.end, 0, 0, {}};
    if (at.unit >= range_.end) return at;
    at.row_block = range_.row_block(at.unit);
    at.index = at.unit - at.row_block * range_.per_rows;
    at.rows = find_block(p_, kBlock, table_, at.row_block);
    return at;
  }
  // To the team's next unit. No division: this happens as often as a few tiles are multiplied.
  __device__ void move(StreamPlace& at) const {
    at.unit += teams_;
    if (at.unit >= range_.end) return;
    at.index += teams_;
    if (at.index < range_.per_rows) return;
    for (; at.index >= range_.per_rows; at.index -= range_.per_rows) ++at.row_block;
    at.rows = find_block(p_, kBlock, table_, at.row_block);
  }
  // The part that a unit belongs to, and the row tile of it.
  __device__ const Part& part_of(const StreamPlace& at, int32_t* row_tile) const {
    int i = 0;
    int32_t index = at.index;
    for (; i + 1 < p_.part_count && index >= p_.part[i].row_tiles; ++i) index -= p_.part[i].row_tiles;
    *row_tile = index;
    return p_.part[i];
  }

  // ---- Rows of x, by one warp for all

  __device__ void fetch_rows(int32_t row_block, int buffer) const {
    const RowBlock rows = find_block(p_, kBlock, table_, row_block);
    const uint32_t to = x_ + buffer * plan_.x_rows * plan_.x_pitch;
    expect_copies(x_full(buffer), lane_, rows.count * p_.cols * 2);
    for (int i = 0; i < rows.count; i += 32) {
      const int32_t own = i + lane_ < rows.count ? x_row(p_, rows.begin + i + lane_) : -1;
      copy_rows(to + i * plan_.x_pitch, plan_.x_pitch, p_.x + own * p_.x_stride, own >= 0, p_.cols * 2, x_full(buffer),
                lane_, min(32, rows.count - i));
    }
    end_copies(x_full(buffer));
  }
  // The next block's are fetched when no warp needs those of the one before this one.
  __device__ void enter_rows(int32_t turn) const {
    if (plan_.x_buffers == 0) return;
    const int32_t next = range_.row_block(range_.first) + turn + 1;
    if (warp_ == 0 && plan_.x_buffers == 2 && next * range_.per_rows < range_.end) {
      if (turn > 0) barrier_wait(x_free((turn + 1) & 1), ((turn - 1) >> 1) & 1);
      __syncwarp();
      fetch_rows(next, (turn + 1) & 1);
    }
    barrier_wait(x_full(turn & 1), (turn >> 1) & 1);
  }
  __device__ void leave_rows(int32_t turn) const {
    if (plan_.x_buffers < 2) return;
    __syncwarp();
    if (lane_ == 0) barrier_arrive(x_free(turn & 1));
  }

  // ---- This warp's ring

  // At the unit's first K slice.
  __device__ void settle() {
    if (load_.at.unit >= range_.end) return;
    int32_t row_tile;
    const Part& part = part_of(load_.at, &row_tile);
    load_.weight = part.weight + load_.at.rows.expert * part.expert_bytes +
                   static_cast<int64_t>(row_tile) * p_.col_tiles * D::kTileBytes;
    begin_k_slice(member_);
  }
  __device__ void begin_k_slice(int32_t k_slice) {
    load_.k_slice = k_slice;
    load_.tile = k_slice * p_.k_slice_tiles;
    load_.end = min(load_.tile + p_.k_slice_tiles, p_.col_tiles);
  }
  __device__ void advance() {
    load_.tile += plan_.chunk_tiles;
    if (load_.tile < load_.end) return;
    if (load_.k_slice + plan_.team < p_.k_slices) return begin_k_slice(load_.k_slice + plan_.team);
    move(load_.at);
    settle();
  }

  __device__ int32_t x_bytes() const {  // of a row of the chunk
    return min(plan_.chunk_tiles * 128, (p_.cols - load_.tile * kTileCols) * 2);
  }
  // Also says how much the stage waits for.
  __device__ void copy_weights(int stage) const {
    const int bytes = min(plan_.chunk_tiles, load_.end - load_.tile) * D::kTileBytes;
    expect_copies(full(stage), lane_, bytes + (plan_.x_buffers > 0 ? 0 : load_.at.rows.count * x_bytes()));
    copy_run(ring_ + stage * plan_.stage_bytes, load_.weight + static_cast<int64_t>(load_.tile) * D::kTileBytes, bytes,
             full(stage), lane_);
  }
  __device__ void fill(int stage, bool has_weights) {
    if (load_.at.unit >= range_.end) return;
    if (!has_weights) copy_weights(stage);
    if (plan_.x_buffers == 0) {
      const uint32_t to = ring_ + stage * plan_.stage_bytes + plan_.chunk_tiles * D::kTileBytes;
      const int32_t row = lane_ < load_.at.rows.count ? x_row(p_, load_.at.rows.begin + lane_) : -1;
      copy_rows(to, plan_.x_pitch, p_.x + row * p_.x_stride + load_.tile * kTileCols, row >= 0, x_bytes(), full(stage),
                lane_, load_.at.rows.count);
    }
    end_copies(full(stage));
    advance();
  }
  // Columns past the last have weights of zero; what lies in their place must be finite.
  __device__ void clear_tail(uint32_t tokens, int32_t tile, int tiles) const {
    const int32_t bytes = tiles * 128, valid = (p_.cols - tile * kTileCols) * 2;
    if (valid >= bytes) return;
    for (int32_t row = 0; row < plan_.x_rows; ++row)
      for (int32_t at = valid + lane_ * 4; at < bytes; at += 128)
        asm volatile("st.shared.u32 [%0], %1;" : : "r"(tokens + row * plan_.x_pitch + at), "r"(0) : "memory");
    order_before_copies();
    __syncwarp();
  }

  // Sums of a unit's K slices, two units deep: while one member adds up a unit the others are at the next.
  __device__ float* sums(int turn, int k_slice) const {
    return sums_ + (static_cast<int64_t>(turn & 1) * p_.k_slices + k_slice) * (16 * kBlock);
  }

  // Where a unit's sums go, and what becomes of them: asked for before they are multiplied, so that nothing is waited
  // for afterwards.
  struct Results {
    const Part* part;
    LaneRows weight;
    int32_t first, count;       // sorted positions of the block of rows
    int32_t rows[2 * kGroups];  // of y, that the lane stores
  };
  __device__ Results results_of(const StreamPlace& at) const {
    int32_t row_tile;
    const Part& part = part_of(at, &row_tile);
    Results r{&part, lane_rows(p_, part, at.rows.expert, row_tile, lane_, D::kUnit), at.rows.begin, at.rows.count, {}};
#pragma unroll
    for (int i = 0; i < 2 * kGroups; ++i) r.rows[i] = y_row(p_, at.rows.begin + min(token_of(i), at.rows.count - 1));
    return r;
  }
  // Of a block of rows, the one of the lane's sums [i / 2][i % 2] and [i / 2][2 + i % 2].
  __device__ int token_of(int i) const {
    return i / 2 * 8 + lane_ % 4 * 2 + i % 2;
  }

  __device__ void finish(const Results& r, int turn) {
    if (p_.k_slices > 1) {
      asm volatile("bar.sync %0, %1;" : : "r"(team_ + 1), "r"(plan_.team * 32) : "memory");
      if (turn % plan_.team != member_) return;
      products_.get(sums(turn, 0));
      for (int s = 1; s < p_.k_slices; ++s) products_.add(sums(turn, s));
    }
#pragma unroll
    for (int i = 0; i < 2 * kGroups; ++i)
      if (token_of(i) < r.count)
        store_pair(p_, *r.part, r.weight, r.rows[i], products_.sum[i / 2][i % 2], products_.sum[i / 2][2 + i % 2]);
  }

  const Problem& p_;
  const StreamPlan& plan_;
  const Range& range_;
  const BlockTable& table_;
  int lane_, warp_, member_, team_, teams_;
  uint32_t ring_, x_, barriers_;
  float* sums_;
  StreamWalk load_{};
  bool prefetched_ = false;
  WarpProducts<D, kGroups> products_;
};

template <class D, int kGroups>
__global__ void __launch_bounds__(kStreamThreads<D>, 1)
    stream_kernel(const __grid_constant__ Problem p, const __grid_constant__ StreamPlan plan) {
  extern __shared__ __align__(1024) uint8_t shared[];
  constexpr int kBlock = 8 * kGroups;
  const bool early = p.offsets == nullptr || p.sorted_early;
  const BlockTable table = block_table(p, kBlock, shared + plan.table_at);
  if (!early) wait_for_previous_kernels();
  // Not before that: when the next kernel begins, that which sorted the rows has ended (sorted_early).
  let_next_kernel_start();
  if (p.offsets != nullptr) fill_block_table(p, kBlock, table);
  const Range range(count_blocks(p, kBlock, table), p.all_row_tiles);
  StreamWarp<D, kGroups> warp(p, plan, shared, range, table);
  warp.init_barriers();
  // Columns past the last are never copied and stay zero.
  if (plan.x_buffers > 0 && p.cols % kTileCols != 0)
    for (int i = static_cast<int>(threadIdx.x) * 4; i < plan.x_buffers * plan.x_rows * plan.x_pitch;
         i += static_cast<int>(blockDim.x) * 4)
      *reinterpret_cast<uint32_t*>(shared + plan.x_at + i) = 0;
  order_before_copies();
  __syncthreads();
  if (early) {
    warp.prefetch();
    wait_for_previous_kernels();
  }
  warp.run();
}

}  // namespace quire::gemm
