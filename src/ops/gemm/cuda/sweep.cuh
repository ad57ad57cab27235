// Few rows of tokens, dense weights with many columns: a block of threads sweeps over the columns. As in stream.cuh
// each warp has a ring of weights of its own and multiplies by mma.m16n8k16; but K is cut into pieces (512 columns, or
// a K slice if that is shorter), and warps take pieces of row tiles in turn, all row tiles' first pieces before any
// second one. So work is dealt out in small equal parts, and shared memory holds the columns of x that are being
// multiplied, not whole rows.
//
// A row tile's sum goes from the warp that multiplied one piece to that which multiplies the next, through shared
// memory, as the float32 numbers that it is: the bits are those of one warp that does it all. K slices are added in
// ascending order.
//
// One more warp fetches the pieces of x, in the order of the sweep, for all.
#pragma once

#include "ops/gemm/cuda/copy.cuh"
#include "ops/gemm/cuda/problem.cuh"
#include "ops/gemm/cuda/warp_products.cuh"

namespace quire::gemm {

struct SweepPlan {
  int32_t warps;        // that multiply
  int32_t piece_tiles;  // column tiles of a piece: a power of two that divides the K slice
  int32_t chunk_tiles;  // of a stage of a ring: a power of two that divides the piece
  int32_t pieces;       // of K
  int32_t group;        // row tiles that a block has under way; when they are done it begins the next
  int32_t x_rows;
  int32_t x_pitch;  // as WarpProducts wants it
  int32_t x_slots;  // pieces of x that there is room for
  int32_t stage_bytes, slot_bytes;
  int32_t x_at, sums_at, totals_at, done_at, barriers_at;  // in shared memory, behind the rings
  int32_t shared_bytes;
};

inline constexpr int kSweepStages = 4;
// Barriers: of each slot of x, full and free; then of each warp's ring.
inline int sweep_barrier_bytes(int warps, int slots) {
  return 8 * (2 * slots + warps * kSweepStages);
}
// Small tiles leave the multiplying as the bottleneck: more warps hide its latencies.
template <class D>
inline constexpr int kSweepWarps = D::kTileBytes < 1024 ? 16 : 8;

// A piece of a row tile, in the order of the sweep.
struct SweepPlace {
  int32_t first, count;  // the group's row tiles [first, first + count); a count of 0: the end
  int32_t at;            // the row tile: first + at
  int32_t piece;
  int32_t slice;  // pieces of all groups, numbered through

  __device__ void move(const SweepPlan& plan, int32_t end, int32_t by) {
    at += by;
    while (count > 0 && at >= count) {
      at -= count;
      ++slice;
      if (++piece < plan.pieces) continue;
      piece = 0;
      first += count;
      count = min(plan.group, end - first);
    }
  }
};

template <class D, int kGroups>
class SweepWarp {
 public:
  using Products = WarpProducts<D, kGroups>;

  __device__ SweepWarp(const Problem& problem, const SweepPlan& plan, uint8_t* shared)
      : p_(problem),
        plan_(plan),
        lane_(threadIdx.x % 32),
        warp_(threadIdx.x / 32),
        products_(lane_, {lane_, plan.x_rows, plan.x_pitch}) {
    const int64_t all = p_.all_row_tiles;
    first_ = static_cast<int32_t>(all * blockIdx.x / gridDim.x);
    end_ = static_cast<int32_t>(all * (blockIdx.x + 1) / gridDim.x);
    ring_ = shared_address(shared) + warp_ * kSweepStages * plan.stage_bytes;
    x_ = shared_address(shared) + plan.x_at;
    sums_ = reinterpret_cast<float*>(shared + plan.sums_at);
    totals_ = reinterpret_cast<float*>(shared + plan.totals_at);
    done_ = shared_address(shared) + plan.done_at;
    barriers_ = shared_address(shared) + plan.barriers_at;
    load_ = begin();
    load_.move(plan_, end_, warp_);
    settle();
  }

  // By all threads, those of the fetching warp too, which has no ring.
  __device__ void init() const {
    if (fetches()) {
      for (int s = lane_; s < plan_.x_slots; s += 32) {
        barrier_init(x_full(s), kCopyArrivals);
        barrier_init(x_free(s), plan_.warps);
      }
      for (int i = lane_; i < plan_.group; i += 32)
        asm volatile("st.shared.u32 [%0], %1;" : : "r"(done_ + 4 * i), "r"(0) : "memory");
      return;
    }
    for (int s = lane_; s < kSweepStages; s += 32) barrier_init(full(s), kCopyArrivals);
  }
  __device__ bool fetches() const { return warp_ == plan_.warps; }

  // What may come before the kernel before this one has ended: weights.
  __device__ void prefetch() {
    for (int s = 0; s < kSweepStages - 1; ++s) fill(s);
  }

  // Pieces of x, by one warp for all.
  __device__ void fetch() const {
    const int32_t groups = (end_ - first_ + plan_.group - 1) / plan_.group;
    int32_t slot = 0, piece = 0;
    uint32_t phase = 1;  // a slot's first use waits for nobody
    for (int32_t slice = 0; slice < groups * plan_.pieces; ++slice) {
      barrier_wait(x_free(slot), phase);
      __syncwarp();
      fetch_piece(piece, slot);
      if (++piece == plan_.pieces) piece = 0;
      if (++slot == plan_.x_slots) slot = 0, phase ^= 1u;
    }
    finish_copies();
  }

  __device__ void run() {
    int stage = 0;
    uint32_t phase = 0;
    SweepPlace at = begin();
    for (at.move(plan_, end_, warp_); at.count > 0; at.move(plan_, end_, plan_.warps)) {
      leave_slices_before(at.slice);
      barrier_wait(x_full(slot_), slot_phase_);
      const uint32_t x = x_ + slot_ * plan_.slot_bytes;
      begin_piece(at);
      const int32_t tiles = piece_tiles(at.piece);
      for (int32_t tile = 0; tile < tiles; tile += plan_.chunk_tiles) {
        barrier_wait(full(stage), phase);
        __syncwarp();
        // The stage that was multiplied before this one is free: all lanes have passed the barrier above.
        fill(stage == 0 ? kSweepStages - 1 : stage - 1);
        products_.multiply(ring_ + stage * plan_.stage_bytes, x + tile * 128, min(plan_.chunk_tiles, tiles - tile));
        if (++stage == kSweepStages) stage = 0, phase ^= 1u;
      }
      end_piece(at);
    }
    // at.slice: the number of all slices.
    leave_slices_before(at.slice);
  }

 private:
  __device__ uint32_t x_full(int slot) const { return barriers_ + 8 * slot; }
  __device__ uint32_t x_free(int slot) const { return barriers_ + 8 * (plan_.x_slots + slot); }
  __device__ uint32_t full(int stage) const {
    return barriers_ + 8 * (2 * plan_.x_slots + warp_ * kSweepStages + stage);
  }
  __device__ SweepPlace begin() const { return {first_, min(plan_.group, end_ - first_), 0, 0, 0}; }
  __device__ int32_t piece_tiles(int32_t piece) const {
    return min(plan_.piece_tiles, p_.col_tiles - piece * plan_.piece_tiles);
  }

  // ---- Rows of x

  __device__ void fetch_piece(int32_t piece, int slot) const {
    const int32_t col = piece * plan_.piece_tiles * kTileCols, bytes = piece_tiles(piece) * 128;
    const int32_t valid = min(bytes, (p_.cols - col) * 2);
    const uint32_t to = x_ + slot * plan_.slot_bytes;
    if (valid < bytes) {  // weights of zero there: the numbers must be finite
      for (int32_t row = 0; row < p_.rows; ++row)
        for (int32_t i = valid + lane_ * 4; i < bytes; i += 128)
          asm volatile("st.shared.u32 [%0], %1;" : : "r"(to + row * plan_.x_pitch + i), "r"(0) : "memory");
      order_before_copies();
      __syncwarp();
    }
    expect_copies(x_full(slot), lane_, p_.rows * valid);
    copy_rows(to, plan_.x_pitch, p_.x + lane_ * p_.x_stride + col, lane_ < p_.rows, valid, x_full(slot), lane_,
              p_.rows);
    end_copies(x_full(slot));
  }
  // Every warp leaves every slice once, also those of which it multiplied nothing; not before they are there, which
  // would count for the slice that was in the slot before.
  __device__ void leave_slices_before(int32_t slice) {
    for (; slice_ < slice; ++slice_) {
      barrier_wait(x_full(slot_), slot_phase_);
      __syncwarp();
      if (lane_ == 0) barrier_arrive(x_free(slot_));
      if (++slot_ == plan_.x_slots) slot_ = 0, slot_phase_ ^= 1u;
    }
  }

  // ---- This warp's ring

  __device__ const Part& part_of(int32_t row_tile, int32_t* own) const {
    int i = 0;
    for (; i + 1 < p_.part_count && row_tile >= p_.part[i].row_tiles; ++i) row_tile -= p_.part[i].row_tiles;
    *own = row_tile;
    return p_.part[i];
  }
  // At the first chunk of the piece that load_ has come to.
  __device__ void settle() {
    if (load_.count == 0 || fetches()) return;
    int32_t row_tile;
    const Part& part = part_of(load_.first + load_.at, &row_tile);
    weight_ =
        part.weight + (static_cast<int64_t>(row_tile) * p_.col_tiles + load_.piece * plan_.piece_tiles) * D::kTileBytes;
    tiles_left_ = piece_tiles(load_.piece);
  }
  __device__ void fill(int stage) {
    if (load_.count == 0) return;
    const int tiles = min(plan_.chunk_tiles, tiles_left_), bytes = tiles * D::kTileBytes;
    expect_copies(full(stage), lane_, bytes);
    copy_run(ring_ + stage * plan_.stage_bytes, weight_, bytes, full(stage), lane_);
    end_copies(full(stage));
    weight_ += bytes;
    tiles_left_ -= tiles;
    if (tiles_left_ > 0) return;
    load_.move(plan_, end_, plan_.warps);
    settle();
  }

  // ---- Sums. done_[i] is the number of slices that the group's row tile i has behind it.

  __device__ void wait_until_done(int32_t at, int32_t slices) const {
    int32_t done;
    do asm volatile("ld.acquire.cta.shared.u32 %0, [%1];" : "=r"(done) : "r"(done_ + 4 * at) : "memory");
    while (done < slices);
  }
  __device__ void now_done(int32_t at, int32_t slices) const {
    __syncwarp();
    if (lane_ == 0) asm volatile("st.release.cta.shared.u32 [%0], %1;" : : "r"(done_ + 4 * at), "r"(slices) : "memory");
  }
  __device__ int32_t pieces_of_k_slice() const { return p_.k_slice_tiles / plan_.piece_tiles; }

  __device__ void begin_piece(const SweepPlace& at) {
    if (at.piece % pieces_of_k_slice() == 0) return products_.clear();
    wait_until_done(at.at, at.slice);
    products_.get(sums_ + at.at * Products::kSumFloats);
  }
  __device__ void end_piece(const SweepPlace& at) {
    if (at.piece % pieces_of_k_slice() == 0) wait_until_done(at.at, at.slice);
    const bool last = at.piece + 1 == plan_.pieces;
    if (!last && (at.piece + 1) % pieces_of_k_slice() != 0) {
      products_.put(sums_ + at.at * Products::kSumFloats);
      return now_done(at.at, at.slice + 1);
    }
    float* const total = totals_ + at.at * Products::kSumFloats;
    if (at.piece >= pieces_of_k_slice()) products_.add(total);
    if (!last) products_.put(total);
    now_done(at.at, at.slice + 1);
    if (last) store(at.first + at.at);
  }
  __device__ void store(int32_t row_tile) const {
    int32_t own;
    const Part& part = part_of(row_tile, &own);
    const LaneRows r = lane_rows(p_, part, 0, own, lane_, D::kUnit);
#pragma unroll
    for (int i = 0; i < kGroups; ++i)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int token = 8 * i + lane_ % 4 * 2 + c;
        if (token < p_.rows) store_pair(p_, part, r, token, products_.sum[i][c], products_.sum[i][2 + c]);
      }
  }

  const Problem& p_;
  const SweepPlan& plan_;
  int lane_, warp_;
  int32_t first_, end_;  // the block's row tiles
  uint32_t ring_, x_, done_, barriers_;
  float *sums_, *totals_;
  SweepPlace load_{};        // what the ring is filled with next
  const uint8_t* weight_{};  // its bytes
  int32_t tiles_left_ = 0;   // of its piece
  int32_t slice_ = 0, slot_ = 0;
  uint32_t slot_phase_ = 0;
  Products products_;
};

template <class D, int kGroups>
__global__ void __launch_bounds__(32 * (kSweepWarps<D> + 1), 1)
    sweep_kernel(const __grid_constant__ Problem p, const __grid_constant__ SweepPlan plan) {
  extern __shared__ __align__(1024) uint8_t shared[];
  let_next_kernel_start();
  SweepWarp<D, kGroups> warp(p, plan, shared);
  warp.init();
  order_before_copies();
  __syncthreads();
  if (warp.fetches()) {
    wait_for_previous_kernels();
    return warp.fetch();
  }
  warp.prefetch();
  wait_for_previous_kernels();
  warp.run();
}

}  // namespace quire::gemm
