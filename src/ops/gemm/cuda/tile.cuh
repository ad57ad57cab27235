// Many rows of tokens: persistent blocks multiply tiles of 128 rows of a weight by up to 256 rows of x with wgmma. One warp
// copies (weights as they are packed by the bulk engine, tokens by the tensor copy engine in the 128-byte swizzle), two
// warpgroups multiply 64 rows each: weights are the A operand, decoded in registers while the tensor cores work on the fragment
// before; tokens are B. Rows of x that belong together lie together: experts' rows are gathered before.
#pragma once

#include "ops/gemm/cuda/copy.cuh"
#include "ops/gemm/cuda/decode.cuh"
#include "ops/gemm/cuda/problem.cuh"
#include "ops/gemm/cuda/tile_epilogue.cuh"
#include "ops/gemm/cuda/tile_walk.cuh"
#include "ops/gemm/cuda/wgmma.cuh"

namespace quire::gemm {

struct TilePlan : TileGrid {
  int32_t stages;
  int32_t weight_bytes, stage_bytes;
  int32_t staging_at, table_at, barriers_at;
  int32_t shared_bytes;
};

inline constexpr int kConsumers = 2;                  // warpgroups
inline constexpr int kTileRowTiles = 4 * kConsumers;  // row tiles of a tile
inline constexpr int kTileThreads = 128 * (1 + kConsumers);

struct Stage {
  int32_t slot = 0;
  uint32_t phase = 0;
  __device__ void next(int stages) {
    if (++slot == stages) slot = 0, phase ^= 1u;
  }
};

struct TileShared {
  uint32_t ring, barriers;  // barriers: full[stages], empty[stages]
  int32_t stages;
  __device__ uint32_t full(int slot) const { return barriers + 8 * slot; }
  __device__ uint32_t empty(int slot) const { return barriers + 8 * (stages + slot); }
};

// Columns of the products that a tile of `count` rows of x takes. Each is code of its own, so formats for which
// prompts need not be fastest have few, and where segments need registers there are fewer.
template <TileFormat F, bool kSegments>
struct Widths {
  static constexpr bool kFine = F == TileFormat::kBf16 || F == TileFormat::kNvfp4 || F == TileFormat::kMxfp4;
  static constexpr int kMost = !kFine ? 128 : kSegments ? 192 : 256;
  static constexpr bool has(int n) {
    if (!kFine) return n == 32 || n == 64 || n == 128;
    return n == 32 || n == 64 || n == 128 || n == 192 || (!kSegments && (n == 96 || n == 160 || n == 256));
  }
  __host__ __device__ static constexpr int of(int count) {
    int n = (count + 31) / 32 * 32;
    while (n < kMost && !has(n)) n += 32;
    return n < 32 ? 32 : n;
  }
};

// ---- The copying warp

inline constexpr int kBoxRows = 32, kBoxBytes = kBoxRows * 128;  // of the tensor map

template <class D, bool kSegments>
class TileProducer {
 public:
  __device__ TileProducer(const Problem& p, const TilePlan& plan, const CUtensorMap& x, uint8_t* shared,
                          const TileShared& s)
      : p_(p), plan_(plan), x_(x), shared_(shared), s_(s), lane_(threadIdx.x) {}

  __device__ void run() {
    const BlockTable table = block_table(p_, plan_.block, shared_ + plan_.table_at);
    const int32_t tiles = count_tiles(p_, plan_, table);
    for (auto i = static_cast<int32_t>(blockIdx.x); i < tiles; i += static_cast<int32_t>(gridDim.x)) {
      const Tile t = find_tile<kTileRowTiles>(p_, plan_, table, i);
      const int boxes = Widths<D::kFormat, kSegments>::of(t.rows.count) / kBoxRows;
      for (int32_t c = t.begin; c < t.end; ++c) {
        barrier_wait(s_.empty(at_.slot), at_.phase ^ 1u);
        copy(t, c, boxes, s_.ring + at_.slot * plan_.stage_bytes, s_.full(at_.slot));
        at_.next(plan_.stages);
      }
    }
  }

 private:
  // A lane for each row tile of the weight, then one for each box of tokens.
  __device__ void copy(const Tile& t, int32_t col_tile, int boxes, uint32_t to, uint32_t barrier) const {
    if (lane_ == 0) barrier_expect(barrier, t.row_tiles * D::kTileBytes + boxes * kBoxBytes);
    __syncwarp();
    const int box = lane_ - kTileRowTiles;
    if (lane_ < t.row_tiles)
      copy_bulk(
          to + lane_ * D::kTileBytes,
          t.weight + (static_cast<int64_t>(t.row_tile + lane_) * p_.col_tiles + col_tile) * D::kTileBytes,
          D::kTileBytes, barrier);
    else if (box >= 0 && box < boxes)
      copy_box(to + plan_.weight_bytes + box * kBoxBytes, &x_, col_tile * kTileCols,
               t.rows.begin + box * kBoxRows, barrier);
  }

  const Problem& p_;
  const TilePlan& plan_;
  const CUtensorMap& x_;
  uint8_t* shared_;
  TileShared s_;
  int lane_;
  Stage at_;
};

// ---- A multiplying warpgroup

template <class D, int I>
__device__ __forceinline__ void decode_step(const typename D::Regs& regs, uint32_t (&a)[2][4]) {
  D::template fragment<true, I / D::kPlanes, I % D::kPlanes>(regs, a[I % 2]);
}

template <class D, bool kSegments>
class TileConsumer {
 public:
  __device__ TileConsumer(const Problem& p, const TilePlan& plan, uint8_t* shared, const TileShared& s)
      : p_(p), plan_(plan), shared_(shared), s_(s), lane_(threadIdx.x % 32) {
    group_ = threadIdx.x / 128 - 1;
    row_tile_ = threadIdx.x / 32 - 4;  // of the tile's
  }

  __device__ __forceinline__ void run() {
    const BlockTable table = block_table(p_, plan_.block, shared_ + plan_.table_at);
    const int32_t tiles = count_tiles(p_, plan_, table);
    for (auto i = static_cast<int32_t>(blockIdx.x); i < tiles; i += static_cast<int32_t>(gridDim.x)) {
      const Tile t = find_tile<kTileRowTiles>(p_, plan_, table, i);
      run_width<32>(Widths<D::kFormat, kSegments>::of(t.rows.count), t);
    }
  }

 private:
  static constexpr int kSteps = 4 * D::kPlanes;  // fragments of a column tile; even

  template <int N>
  __device__ __forceinline__ void run_width(int width, const Tile& t) {
    if constexpr (Widths<D::kFormat, kSegments>::has(N)) {
      if (width == N) return multiply<N>(t);
    }
    if constexpr (N < Widths<D::kFormat, kSegments>::kMost) run_width<N + 32>(width, t);
  }

  __device__ uint32_t weights(int slot) const {
    return s_.ring + slot * plan_.stage_bytes + row_tile_ * D::kTileBytes;
  }
  __device__ void wait_until_full(const Stage& stage) const {
    barrier_wait(s_.full(stage.slot), stage.phase);
  }
  __device__ void release(int slot) const {
    __syncwarp();
    if (lane_ == 0) barrier_arrive(s_.empty(slot));
  }

  // Fragment I of the column tile in at_, and the decoding of the next one, possibly of the next tile.
  template <int N, int I>
  __device__ __forceinline__ void steps(float (&sum)[N / 2], typename D::Regs& regs, uint32_t (&a)[2][4],
                                        uint64_t tokens, bool first, bool last) {
    cuda::warpgroup_fence();
    Wgmma<N>::multiply(sum, a[I % 2], tokens + I / D::kPlanes * 2);
    cuda::warpgroup_commit();
    cuda::warpgroup_wait<1>();
    if constexpr (I == 0) {
      if (!first) release(at_.slot == 0 ? plan_.stages - 1 : at_.slot - 1);
    }
    if constexpr (I + 1 < kSteps) {
      decode_step<D, I + 1>(regs, a);
      if constexpr (I + 2 == kSteps) {
        if (!last) {
          Stage next = at_;
          next.next(plan_.stages);
          wait_until_full(next);
          regs = D::load(weights(next.slot), lane_);
        }
      }
      steps<N, I + 1>(sum, regs, a, tokens, first, last);
    } else if (!last) {
      decode_step<D, 0>(regs, a);
    }
  }

  template <int N>
  __device__ __forceinline__ void multiply(const Tile& t) {
    float sum[N / 2];
#pragma unroll
    for (float& v : sum) v = 0;
    uint32_t a[2][4];
    wait_until_full(at_);
    typename D::Regs regs = D::load(weights(at_.slot), lane_);
    decode_step<D, 0>(regs, a);
    cuda::pin(sum);
    float total[kSegments ? N / 2 : 1];
#pragma unroll
    for (float& v : total) v = 0;
    for (int32_t left = t.end - t.begin; left > 0;) {
      for (int32_t c = min(p_.segment_tiles, left); c > 0; --c, --left) {
        const uint64_t tokens = token_descriptor(s_.ring + at_.slot * plan_.stage_bytes + plan_.weight_bytes);
        steps<N, 0>(sum, regs, a, tokens, left == t.end - t.begin, left == 1);
        at_.next(plan_.stages);
      }
      cuda::warpgroup_wait<0>();
      cuda::pin(sum);
      if constexpr (kSegments) {
        // The first sum is added to zero, which changes the sign of a zero at most, and the bias undoes that.
#pragma unroll
        for (int i = 0; i < N / 2; ++i) {
          total[i] = __fadd_rn(total[i], sum[i]);
          sum[i] = 0;
        }
        cuda::pin(sum);
      }
    }
    if constexpr (kSegments) {
#pragma unroll
      for (int i = 0; i < N / 2; ++i) sum[i] = total[i];
    }
    release(at_.slot == 0 ? plan_.stages - 1 : at_.slot - 1);
    const TileOutput out{p_,
                         *t.part,
                         t.rows,
                         t.first_row,
                         t.row_tile + row_tile_,
                         t.row_tile + 4 * group_,
                         lane_,
                         shared_ + plan_.staging_at + group_ * kStagingBytes,
                         group_};
    out.store<N>(sum, plan_.splits > 1 ? 1.0f : D::kUnit);
  }

  const Problem& p_;
  const TilePlan& plan_;
  uint8_t* shared_;
  TileShared s_;
  int lane_, group_, row_tile_;
  Stage at_;
};

template <class D, bool kSegments>
__global__ void __launch_bounds__(kTileThreads, 1)
    tile_kernel(const __grid_constant__ Problem p, const __grid_constant__ TilePlan plan,
                const __grid_constant__ CUtensorMap x) {
  if constexpr (!cuda::kForWgmma) {
    __trap();  // never launched: launch_tile
  } else {
    extern __shared__ __align__(1024) uint8_t shared[];
    const TileShared s{shared_address(shared), shared_address(shared) + plan.barriers_at, plan.stages};
    let_next_kernel_start();
    if (threadIdx.x == 0) {
      for (int i = 0; i < plan.stages; ++i) {
        barrier_init(s.full(i), 1);                // the copying warp
        barrier_init(s.empty(i), 4 * kConsumers);  // warps of the others
      }
      order_before_copies();
    }
    wait_for_previous_kernels();
    if (p.offsets != nullptr)
      fill_block_table(p, plan.block, block_table(p, plan.block, shared + plan.table_at));
    else
      __syncthreads();
    if (threadIdx.x < 128) {
      asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
      if (threadIdx.x < 32) TileProducer<D, kSegments>(p, plan, x, shared, s).run();
    } else {
      asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
      TileConsumer<D, kSegments>(p, plan, shared, s).run();
    }
  }
}

}  // namespace quire::gemm
