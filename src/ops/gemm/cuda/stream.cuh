// Few rows of tokens: weights stream through rings of shared memory that belong to one warp each, and are multiplied by
// mma.m16n8k16 with the tokens as its eight columns. Warps wait for nobody but their own copies.
//
// A unit of work is a row tile (16 rows of a weight, all of K) times a block of at most 8 kGroups rows of x. If K has several
// segments, up to eight warps share a unit, each with its own segments, and one of them adds them up in order; or
// (`split`, for weights with so few rows that this would leave most multiprocessors idle) each segment is a unit.
#pragma once

#include "ops/gemm/cuda/decode.cuh"
#include "ops/gemm/cuda/problem.cuh"

namespace quire::gemm {

struct StreamPlan {
  int32_t warps;        // of a block
  int32_t team;         // warps that share a unit: a power of two that divides `warps`
  int32_t chunk_tiles;  // column tiles of a stage: a power of two that divides the segment
  int32_t x_rows;       // rows of x that a stage has room for
  bool resident;        // dense, one block of rows: all of x is in shared memory, not in the rings
  bool split;           // a unit is one segment, and its sums are what is stored
  int32_t stage_bytes;
  int32_t sums_at, table_at, x_at;  // in shared memory, behind the rings
  int32_t shared_bytes;
};

inline constexpr int kStages = 4;
// Small tiles leave the multiplying as the bottleneck: more warps hide its latencies.
template <class D>
inline constexpr int kStreamThreads = D::kTileBytes < 1024 ? 512 : 256;

__device__ inline void mma_16816(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline void load_matrices(uint32_t (&r)[4], uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}

// A unit of a launch: which tile of which weight, and which rows.
struct Unit {
  const KernelPart* part;
  const uint8_t* weight;  // its first tile
  int32_t row_tile;
  RowBlock rows;
};

__device__ inline Unit find_unit(const Problem& p, int block, const BlockTable& table, int32_t index) {
  int32_t tile = index % p.all_row_tiles;
  Unit u;
  u.rows = find_block(p, block, table, index / p.all_row_tiles);
  int i = 0;
  for (; i + 1 < p.part_count && tile >= p.part[i].row_tiles; ++i) tile -= p.part[i].row_tiles;
  u.part = &p.part[i];
  u.row_tile = tile;
  u.weight = u.part->weight + u.rows.expert * u.part->expert_bytes;
  return u;
}

// The chunks of a warp, in the order in which it multiplies them: of its units, their segments first, first + team, ...
struct Walk {
  int32_t unit;
  int32_t segment, tile, end;  // column tiles [tile, end) of the segment are left

  __device__ void begin_segment(const Problem& p) {
    tile = segment * p.segment_tiles;
    end = min(tile + p.segment_tiles, p.col_tiles);
  }
};

template <class D, int kGroups>
class StreamWarp {
 public:
  static constexpr int kBlock = 8 * kGroups;

  __device__ StreamWarp(const Problem& problem, const StreamPlan& plan, uint8_t* shared)
      : p_(problem), plan_(plan), lane_(threadIdx.x % 32) {
    const int warp = threadIdx.x / 32;
    member_ = warp % plan.team;
    team_ = warp / plan.team;
    ring_ = shared_address(shared) + warp * kStages * plan.stage_bytes;
    sums_ = reinterpret_cast<float*>(shared + plan.sums_at) +
            static_cast<int64_t>(team_) * 2 * p_.segments * (16 * kBlock);
    table_ = block_table(p_, kBlock, shared + plan.table_at);
    x_ = shared_address(shared) + plan.x_at;
    units_ = count_blocks(p_, kBlock, table_) * p_.all_row_tiles * (plan.split ? p_.segments : 1);
    step_ = static_cast<int32_t>(gridDim.x) * (plan.warps / plan.team);
    load_ = start();
  }

  __device__ void run() {
    bool filled = prefill();
    Walk at = start();
    int stage = 0, turn = 0;
    while (at.unit < units_) {
      const Unit u = unit(at.unit);
      for (at.segment = first_segment(at.unit); at.segment < p_.segments; at.segment += segment_step()) {
        at.begin_segment(p_);
        for (int i = 0; i < kGroups; ++i)
          for (float& v : sum_[i]) v = 0;
        for (; at.tile < at.end; at.tile += plan_.chunk_tiles) {
          wait_for_copies<kStages - 2>();
          __syncwarp();
          // The stage that was multiplied before this one is free: all lanes have passed the barrier above.
          if (!filled) fill(stage == 0 ? kStages - 1 : stage - 1);
          filled = false;
          const uint32_t weights = ring_ + stage * plan_.stage_bytes;
          multiply(weights,
                   plan_.resident ? x_ + at.tile * plan_.x_rows * 128
                                  : weights + plan_.chunk_tiles * D::kTileBytes,
                   min(plan_.chunk_tiles, at.end - at.tile));
          stage = stage == kStages - 1 ? 0 : stage + 1;
        }
        if (p_.segments > 1 && !plan_.split) put_sums(turn, at.segment);
      }
      finish(u, turn, first_segment(at.unit));
      ++turn;
      at.unit += step_;
    }
    wait_for_copies<0>();
  }

 private:
  __device__ Walk start() const {
    Walk w;
    w.unit = static_cast<int32_t>(blockIdx.x + gridDim.x * team_);
    w.segment = first_segment(w.unit);
    w.begin_segment(p_);
    return w;
  }
  __device__ Unit unit(int32_t index) const {
    return find_unit(p_, kBlock, table_, plan_.split ? index / p_.segments : index);
  }
  // Of the segments of a unit, those of this warp: first_segment, first_segment + segment_step, ...
  __device__ int32_t first_segment(int32_t index) const {
    return plan_.split ? index % p_.segments : member_;
  }
  __device__ int32_t segment_step() const { return plan_.split ? p_.segments : plan_.team; }

  // Where the next chunk's copies come from; false if there is none.
  __device__ bool next_chunk() {
    if (load_.unit >= units_) return false;
    if (load_.unit != loaded_unit_) {
      const Unit u = unit(load_.unit);
      load_weight_ = u.weight + static_cast<int64_t>(u.row_tile) * p_.col_tiles * D::kTileBytes;
      load_rows_ = u.rows.count;
      load_begin_ = u.rows.begin;
      rows_known_ = false;
      loaded_unit_ = load_.unit;
    }
    return true;
  }
  __device__ void advance() {
    load_.tile += plan_.chunk_tiles;
    if (load_.tile < load_.end) return;
    load_.segment += segment_step();
    if (load_.segment >= p_.segments) {
      load_.unit += step_;
      load_.segment = first_segment(load_.unit);
    }
    load_.begin_segment(p_);
  }

  __device__ void copy_weights(uint32_t to) const {
    const int bytes = min(plan_.chunk_tiles, load_.end - load_.tile) * D::kTileBytes;
    const uint8_t* from = load_weight_ + static_cast<int64_t>(load_.tile) * D::kTileBytes;
    for (int i = lane_ * 16; i < bytes; i += 512) copy_async_16(to + i, from + i, true);
  }
  // [tile][row] 128 bytes, the eight pieces of a row exchanged by its number: ldmatrix then meets no bank twice.
  __device__ void copy_tokens(uint32_t to) {
    if (!rows_known_) {
      token_ = x_row(p_, load_begin_ + min(lane_, load_rows_ - 1));
      rows_known_ = true;
    }
    // A row's pieces by up to 32 lanes, as many rows at once as there are lanes for.
    const int pieces = min(plan_.chunk_tiles * 8, 32), rows_at_once = 32 / pieces;
    const int piece = lane_ & (pieces - 1), own = lane_ / pieces;
    for (int first = 0; first < load_rows_; first += rows_at_once) {
      const int row = first + own;
      const __nv_bfloat16* from = p_.x + __shfl_sync(0xffffffffu, token_, min(row, 31)) * p_.x_stride;
      for (int i = piece; i < plan_.chunk_tiles * 8; i += 32) {
        const int32_t col = load_.tile * kTileCols + i * 8;
        const bool inside = col < p_.cols;
        if (row < load_rows_)
          copy_async_16(to + ((i >> 3) * plan_.x_rows + row) * 128 + (((i & 7) ^ (row & 7)) << 4),
                        from + (inside ? col : 0), inside);
      }
    }
  }
  __device__ void fill(int stage) {
    if (next_chunk()) {
      const uint32_t to = ring_ + stage * plan_.stage_bytes;
      copy_weights(to);
      if (!plan_.resident) copy_tokens(to + plan_.chunk_tiles * D::kTileBytes);
      advance();
    }
    commit_copies();
  }
  // Fetches the first stages; true if that includes the last one. Weights do not depend on the kernel before this
  // one, so they may come before it ends. Routing does.
  __device__ bool prefill() {
    if (p_.offsets != nullptr) {
      for (int s = 0; s < kStages - 1; ++s) fill(s);
      return false;
    }
    const Walk begin = load_;
    for (int s = 0; s < kStages - 1 && next_chunk(); ++s) {
      copy_weights(ring_ + s * plan_.stage_bytes);
      advance();
    }
    if (plan_.resident) {
      wait_for_previous_kernel();
      copy_all_tokens();
      for (int s = 0; s < kStages - 1; ++s) commit_copies();
      fill(kStages - 1);
      wait_for_copies<1>();
      __syncthreads();
      return true;
    }
    load_ = begin;
    wait_for_previous_kernel();
    for (int s = 0; s < kStages - 1; ++s) {
      if (next_chunk()) {
        copy_tokens(ring_ + s * plan_.stage_bytes + plan_.chunk_tiles * D::kTileBytes);
        advance();
      }
      commit_copies();
    }
    return false;
  }
  // By all warps together, laid out as in a ring.
  __device__ void copy_all_tokens() const {
    for (int row = 0; row < p_.rows; ++row) {
      const __nv_bfloat16* from = p_.x + row * p_.x_stride;
      for (int i = threadIdx.x; i < p_.col_tiles * 8; i += plan_.warps * 32) {
        const bool valid = i * 8 < p_.cols;
        copy_async_16(x_ + (i / 8 * plan_.x_rows + row) * 128 + ((i % 8) ^ (row & 7)) * 16,
                      valid ? from + i * 8 : from, valid);
      }
    }
  }

  // What a warp multiplies of a column tile.
  struct Operands {
    typename D::Regs weights;
    uint32_t tokens[kGroups][2][4];
  };
  __device__ void load(Operands& o, uint32_t weights, uint32_t tokens) const {
    o.weights = D::load(weights, lane_);
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      // Rows that there is no room for are those of another: their results are not used.
      const int row = min(8 * i + lane_ % 8, plan_.x_rows - 1);
      load_matrices(o.tokens[i][0], tokens + row * 128 + ((lane_ / 8) ^ (row & 7)) * 16);
      load_matrices(o.tokens[i][1], tokens + row * 128 + ((4 + lane_ / 8) ^ (row & 7)) * 16);
    }
  }
  template <int J, int P>
  __device__ void step(const Operands& o) {
    uint32_t a[4];
    D::template fragment<J, P>(o.weights, a);
#pragma unroll
    for (int i = 0; i < kGroups; ++i)
      mma_16816(sum_[i], a, o.tokens[i][J / 2][J % 2 * 2], o.tokens[i][J / 2][J % 2 * 2 + 1]);
    if constexpr (P + 1 < D::kPlanes) step<J, P + 1>(o);
  }
  __device__ void multiply(const Operands& o) {
    step<0, 0>(o);
    step<1, 0>(o);
    step<2, 0>(o);
    step<3, 0>(o);
  }
  // A column tile is loaded while the one before it is multiplied.
  __device__ void multiply(uint32_t weights, uint32_t tokens, int tiles) {
    const uint32_t x_step = plan_.x_rows * 128;
    if constexpr (kGroups > 1) {  // no registers for that
      for (int t = 0; t < tiles; ++t) {
        Operands o;
        load(o, weights + t * D::kTileBytes, tokens + t * x_step);
        multiply(o);
      }
      return;
    }
    Operands o[2];
    load(o[0], weights, tokens);
    for (int t = 0;;) {
      if (t + 1 < tiles) load(o[1], weights + (t + 1) * D::kTileBytes, tokens + (t + 1) * x_step);
      multiply(o[0]);
      if (++t == tiles) return;
      if (t + 1 < tiles) load(o[0], weights + (t + 1) * D::kTileBytes, tokens + (t + 1) * x_step);
      multiply(o[1]);
      if (++t == tiles) return;
    }
  }

  // Sums of a unit's segments, two units deep: while one member adds up a unit the others are at the next.
  __device__ float* sums(int turn, int segment) const {
    return sums_ + (static_cast<int64_t>(turn & 1) * p_.segments + segment) * (16 * kBlock) + lane_ * 4;
  }
  __device__ void put_sums(int turn, int segment) {
#pragma unroll
    for (int i = 0; i < kGroups; ++i)
      *reinterpret_cast<float4*>(sums(turn, segment) + i * 128) =
          make_float4(sum_[i][0], sum_[i][1], sum_[i][2], sum_[i][3]);
  }

  __device__ void finish(const Unit& u, int turn, int32_t segment) {
    if (p_.segments > 1 && !plan_.split) {
      asm volatile("bar.sync %0, %1;" : : "r"(team_ + 1), "r"(plan_.team * 32) : "memory");
      if (turn % plan_.team != member_) return;
#pragma unroll
      for (int i = 0; i < kGroups; ++i)
        for (int s = 0; s < p_.segments; ++s) {
          const float4 v = *reinterpret_cast<const float4*>(sums(turn, s) + i * 128);
          sum_[i][0] = s == 0 ? v.x : __fadd_rn(sum_[i][0], v.x);
          sum_[i][1] = s == 0 ? v.y : __fadd_rn(sum_[i][1], v.y);
          sum_[i][2] = s == 0 ? v.z : __fadd_rn(sum_[i][2], v.z);
          sum_[i][3] = s == 0 ? v.w : __fadd_rn(sum_[i][3], v.w);
        }
    }
    const LaneRows r = lane_rows(p_, *u.part, u.rows.expert, u.row_tile, lane_, D::kUnit);
#pragma unroll
    for (int i = 0; i < kGroups; ++i)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int token = 8 * i + lane_ % 4 * 2 + c;
        if (token >= u.rows.count) continue;
        const int32_t row =
            plan_.split ? segment * p_.rows + u.rows.begin + token : y_row(p_, u.rows.begin + token);
        store_pair(p_, *u.part, r, row, sum_[i][c], sum_[i][2 + c]);
      }
  }

  const Problem& p_;
  const StreamPlan& plan_;
  int lane_, member_, team_;
  uint32_t ring_;
  float* sums_;
  BlockTable table_;
  uint32_t x_;
  int32_t units_, step_;
  Walk load_;
  int32_t loaded_unit_ = -1;
  const uint8_t* load_weight_ = nullptr;
  int32_t load_rows_ = 0, load_begin_ = 0, token_ = 0;
  bool rows_known_ = false;
  float sum_[kGroups][4];
};

template <class D, int kGroups>
__global__ void __launch_bounds__(kStreamThreads<D>, 1)
    stream_kernel(const __grid_constant__ Problem p, const __grid_constant__ StreamPlan plan) {
  extern __shared__ __align__(1024) uint8_t shared[];
  let_next_kernel_start();
  if (p.offsets != nullptr) {
    wait_for_previous_kernel();
    fill_block_table(p, 8 * kGroups, block_table(p, 8 * kGroups, shared + plan.table_at));
  }
  StreamWarp<D, kGroups>(p, plan, shared).run();
}

}  // namespace quire::gemm
