// Many rows of tokens: persistent blocks multiply tiles of 128 rows of a weight by up to 256 rows of x with wgmma. Four
// warps copy (weights as they are packed by the bulk engine, tokens by the tensor copy engine in the 128-byte swizzle),
// two warpgroups multiply 64 rows each: weights are the A operand, decoded in registers while the tensor cores work on
// the fragment before; tokens are B. Rows of x that belong together lie together: experts' rows are copied before.
//
// Where tiles are few waves of all multiprocessors, their columns are dealt out evenly (tile_walk.cuh): a block then
// stops within its last tile and leaves the sums, the float32 numbers that they are, to the block that goes on with it.
#pragma once

#include "ops/gemm/cuda/copy.cuh"
#include "ops/gemm/cuda/decode.cuh"
#include "ops/gemm/cuda/problem.cuh"
#include "ops/gemm/cuda/tile_epilogue.cuh"
#include "ops/gemm/cuda/tile_walk.cuh"
#include "ops/gemm/cuda/wgmma.cuh"

namespace quire::gemm {

// Where sums are handed over from block b of threads to the next: room for b's, and a flag for each of its warpgroups,
// zero when the kernel starts.
struct HandOver {
  uint32_t* flags;  // [blocks][kConsumers]
  float* sums;      // [blocks][kConsumers][fours] float4: [fours / 128][128 threads], of narrow tiles fewer
  int32_t fours;
};

struct TilePlan : TileGrid {
  int32_t stages, stage_tiles;
  int32_t box_rows;                                // of the tensor map
  int32_t weight_bytes, token_bytes, stage_bytes;  // of a stage; of a column tile of tokens
  HandOver hand_over;
  int32_t staging_at, table_at, barriers_at;
  int32_t shared_bytes;
};

inline constexpr int kConsumers = 2;  // warpgroups
static_assert(kTileRowTiles == 4 * kConsumers);
inline constexpr int kTileThreads = 128 * (1 + kConsumers);
inline constexpr int kCopyWarps = 4;
using Walk = TileWalk<kTileRowTiles>;

// Column tiles of a stage, at most. What asks for copies is bound by their number, so small tiles come two at a time
// where that leaves stages enough.
template <class D>
inline constexpr int kMostStageTiles = D::kTileBytes < 1024 ? 2 : 1;

// A stage of the ring, and a column tile in it.
template <int kMostTiles>
struct Stage {
  int32_t slot = 0, tile = 0;
  uint32_t phase = 0;
  __device__ void next_slot(int stages) {
    tile = 0;
    if (++slot == stages) slot = 0, phase ^= 1u;
  }
  __device__ void next(int stages, int tiles) {
    if (kMostTiles == 1 || ++tile == tiles) next_slot(stages);
  }
  // The next tile of a product begins with a stage of its own.
  __device__ void finish(int stages) {
    if (kMostTiles > 1 && tile != 0) next_slot(stages);
  }
  __device__ int32_t slot_before(int stages) const { return slot == 0 ? stages - 1 : slot - 1; }
};

struct TileShared {
  uint32_t ring, barriers;  // barriers: full[stages], empty[stages]
  int32_t stages;
  __device__ uint32_t full(int slot) const { return barriers + 8 * slot; }
  __device__ uint32_t empty(int slot) const { return barriers + 8 * (stages + slot); }
};

// Narrow tiles have up to so many rows of x. Their decoding waits for latencies most of the time, so that two blocks of
// threads share a multiprocessor, each with half of its registers and shared memory.
inline constexpr int kNarrowRows = 32;
// Formats of more bytes would not have stages enough there.
template <class D>
inline constexpr bool kHasNarrow = D::kTileBytes <= 2048;

// Columns of the products that a tile of `count` rows of x takes. Each is code of its own, so formats for which
// prompts need not be fastest have few, and where K slices need registers there are fewer.
template <TileFormat F, TileSums kSums, bool kNarrow>
struct Widths {
  static constexpr bool kKSlices = kSums != TileSums::kOne;
  static constexpr bool kFine = is_fp4(F) || F == TileFormat::kBf16 || F == TileFormat::kFp8;
  static constexpr int kMost = kNarrow ? kNarrowRows : !kFine ? 128 : kKSlices ? 192 : 256;
  static constexpr bool has(int n) {
    if (!kFine) return n == 32 || n == 64 || n == 128;
    return n == 32 || n == 64 || n == 128 || n == 192 || (!kKSlices && (n == 96 || n == 160 || n == 256));
  }
  __host__ __device__ static constexpr int of(int count) {
    int n = (count + 31) / 32 * 32;
    while (n < kMost && !has(n)) n += 32;
    return n < 32 ? 32 : n;
  }
};

// ---- The copying warps

// Rows of experts are copied in boxes this small, so that few are copied for nothing.
inline constexpr int kBoxRows = 32;

template <class D, TileSums kSums, bool kNarrow>
class TileProducer {
 public:
  __device__ TileProducer(const Problem& p, const TilePlan& plan, const CUtensorMap& x, uint8_t* shared,
                          const TileShared& s)
      : p_(p), plan_(plan), x_(x), shared_(shared), s_(s), lane_(threadIdx.x % 32), warp_(threadIdx.x / 32) {}

  __device__ void run() {
    const BlockTable table = block_table(p_, plan_.block, shared_ + plan_.table_at);
    Walk walk(p_, plan_, table);
    for (Walk::Piece piece; walk.next(piece);) {
      const Tile t = walk.tile(piece);
      const int boxes = (Widths<D::kFormat, kSums, kNarrow>::of(t.rows.count) + plan_.box_rows - 1) / plan_.box_rows;
      for (int32_t c = t.begin; c < t.end; c += plan_.stage_tiles) {
        barrier_wait(s_.empty(at_.slot), at_.phase ^ 1u);
        __syncwarp();
        copy(t, c, min(plan_.stage_tiles, t.end - c), boxes);
        at_.next_slot(plan_.stages);
      }
    }
  }

 private:
  static constexpr int kRuns = kTileRowTiles / kCopyWarps;  // of weights, that a warp copies

  // Of the row tiles and of the boxes of tokens each warp takes every fourth, and a lane asks for each.
  __device__ void copy(const Tile& t, int32_t col_tile, int tiles, int boxes) const {
    const uint32_t to = s_.ring + at_.slot * plan_.stage_bytes, barrier = s_.full(at_.slot);
    const int box_bytes = plan_.box_rows * 128, all_boxes = tiles * boxes;
    const int own_runs = (t.row_tiles + kCopyWarps - 1 - warp_) / kCopyWarps,
              own_boxes = (all_boxes + kCopyWarps - 1 - warp_) / kCopyWarps;
    if (lane_ == 0) barrier_expect(barrier, own_runs * tiles * D::kTileBytes + own_boxes * box_bytes);
    __syncwarp();
    if (lane_ < own_runs) {
      const int run = warp_ + kCopyWarps * lane_;
      copy_bulk(to + run * plan_.stage_tiles * D::kTileBytes,
                t.weight + (static_cast<int64_t>(t.row_tile + run) * p_.col_tiles + col_tile) * D::kTileBytes,
                tiles * D::kTileBytes, barrier);
    } else if (lane_ >= kRuns && lane_ < kRuns + own_boxes) {
      const int i = warp_ + kCopyWarps * (lane_ - kRuns), tile = i / boxes, box = i - tile * boxes;
      copy_box(to + plan_.weight_bytes + tile * plan_.token_bytes + box * box_bytes, &x_, (col_tile + tile) * kTileCols,
               t.rows.begin + box * plan_.box_rows, barrier);
    }
  }

  const Problem& p_;
  const TilePlan& plan_;
  const CUtensorMap& x_;
  uint8_t* shared_;
  TileShared s_;
  int lane_, warp_;
  Stage<kMostStageTiles<D>> at_;
};

// ---- A multiplying warpgroup

// Fragments of a column tile that are multiplied as one group, while those of the next group are decoded. All four
// leave the fewest waits; wide tiles hide these anyway, and have no registers for it.
template <class D, int N>
inline constexpr int kTogether = D::kPlanes == 1 && N <= 128 ? 4 : 1;

// kPaired: p.paired. What becomes of sums is most of the code, and takes too long to compile in one kernel.
template <class D, TileSums kSums, bool kPaired, bool kNarrow>
class TileConsumer {
 public:
  __device__ TileConsumer(const Problem& p, const TilePlan& plan, uint8_t* shared, const TileShared& s)
      : p_(p), plan_(plan), shared_(shared), s_(s), lane_(threadIdx.x % 32) {
    group_ = threadIdx.x / 128 - 1;
    row_tile_ = threadIdx.x / 32 - 4;  // of the tile's
  }

  __device__ __forceinline__ void run() {
    const BlockTable table = block_table(p_, plan_.block, shared_ + plan_.table_at);
    Walk walk(p_, plan_, table);
    for (Walk::Piece piece; walk.next(piece);)
      run_width<32>(Widths<D::kFormat, kSums, kNarrow>::of(walk.tile(piece).rows.count), walk, piece);
  }

 private:
  static constexpr int kSteps = 4 * D::kPlanes;  // fragments of a column tile; even
  static constexpr bool kTotals = kSums == TileSums::kTotals, kApart = kSums == TileSums::kApart;

  template <int N>
  __device__ __forceinline__ void run_width(int width, const Walk& walk, const Walk::Piece& piece) {
    if constexpr (Widths<D::kFormat, kSums, kNarrow>::has(N)) {
      if (width == N) return multiply<N>(walk, piece);
    }
    if constexpr (N < Widths<D::kFormat, kSums, kNarrow>::kMost) run_width<N + 32>(width, walk, piece);
  }

  using Place = Stage<kMostStageTiles<D>>;
  struct Columns {  // that are left, in column tiles
    int32_t of_tile, of_k_slice;
    bool first;
    int32_t add;  // 0: the next one begins a K slice, and what sums were is not added to
  };
  // kApart: where the next sums of this warpgroup go, and how many rows of x they are of.
  struct Left {
    float4* at;
    int32_t count;
  };

  __device__ uint32_t weights(const Place& at) const {
    return s_.ring + at.slot * plan_.stage_bytes + (row_tile_ * plan_.stage_tiles + at.tile) * D::kTileBytes;
  }
  __device__ uint64_t tokens(const Place& at) const {
    return token_descriptor(s_.ring + at.slot * plan_.stage_bytes + plan_.weight_bytes + at.tile * plan_.token_bytes);
  }
  __device__ void wait_until_full(const Place& at) const {
    if (at.tile == 0) barrier_wait(s_.full(at.slot), at.phase);
  }
  __device__ void release(int slot) const {
    __syncwarp();
    if (lane_ == 0) barrier_arrive(s_.empty(slot));
  }

  // Operands of two groups: one is multiplied, one decoded.
  template <int N>
  using Groups = uint32_t[2][kTogether<D, N>][4];

  // The fragments of group I of a column tile.
  template <int N, int I, int J = 0>
  __device__ __forceinline__ void decode(const typename D::Regs& regs, uint32_t (&a)[kTogether<D, N>][4]) const {
    constexpr int kStep = I * kTogether<D, N> + J;
    D::template fragment<true, kStep / D::kPlanes, kStep % D::kPlanes>(regs, a[J]);
    if constexpr (J + 1 < kTogether<D, N>) decode<N, I, J + 1>(regs, a);
  }

  // Group I of the column tile in at_, and the decoding of the next one, possibly of the next tile. It is number I +
  // kTurn of all groups, modulo 2.
  template <int N, int kTurn, int I = 0>
  __device__ __forceinline__ void column_tile(float (&sum)[N / 2], typename D::Regs& regs, Groups<N>& a, uint64_t x,
                                              int32_t add, bool first, bool last) {
    constexpr int kEach = kTogether<D, N>, kGroups = kSteps / kEach, kNow = (I + kTurn) % 2;
    cuda::warpgroup_fence();
#pragma unroll
    for (int j = 0; j < kEach; ++j)
      Wgmma<N>::multiply(sum, a[kNow][j], x + (I * kEach + j) / D::kPlanes * 2, I == 0 && j == 0 ? add : 1);
    cuda::warpgroup_commit();
    // Early, but where two stages may be all there are: there the one before this one must be given back first.
    if constexpr (kGroups == 1 && kMostStageTiles<D> != 1) load_next(regs, last);
    cuda::warpgroup_wait<1>();
    if constexpr (I == 0) {
      if (!first && at_.tile == 0) release(at_.slot_before(plan_.stages));
    }
    if constexpr (kGroups == 1 && kMostStageTiles<D> == 1) load_next(regs, last);
    if constexpr (I + 1 < kGroups) {
      decode<N, I + 1>(regs, a[1 - kNow]);
      if constexpr (I + 2 == kGroups) load_next(regs, last);
      column_tile<N, kTurn, I + 1>(sum, regs, a, x, add, first, last);
    } else if (!last) {
      decode<N, 0>(regs, a[1 - kNow]);
    }
  }
  __device__ __forceinline__ void load_next(typename D::Regs& regs, bool last) const {
    if (last) return;
    Place next = at_;
    next.next(plan_.stages, plan_.stage_tiles);
    wait_until_full(next);
    regs = D::load(weights(next), lane_);
  }

  // A column tile of t, and the end of its K slice. False after the last one.
  template <int N, int kTurn>
  __device__ __forceinline__ bool step(float (&sum)[N / 2], float (&total)[kTotals ? N / 2 : 1], typename D::Regs& regs,
                                       Groups<N>& a, Columns& left, Left& sums) {
    column_tile<N, kTurn>(sum, regs, a, tokens(at_), left.add, left.first, left.of_tile == 1);
    left.first = false;
    left.add = 1;
    at_.next(plan_.stages, plan_.stage_tiles);
    if (--left.of_tile == 0) return false;
    if constexpr (kTotals || kApart) {
      if (--left.of_k_slice == 0) {
        cuda::warpgroup_wait<0>();
        if constexpr (kTotals) {
          add<N>(sum, total);
        } else {
          leave<N>(sum, sums);
        }
        left.of_k_slice = p_.k_slice_tiles;
        left.add = 0;
      }
    }
    return true;
  }
  template <int N>
  __device__ __forceinline__ void leave(float (&sum)[N / 2], Left& sums) const {
    cuda::pin(sum);
    store_apart<N>(sums.at, sums.count, sum);
    sums.at += plan_.apart.place(1, 0, 0);
    cuda::pin(sum);
  }
  // The first sum is added to zero, which changes the sign of a zero at most, and the bias undoes that.
  template <int N>
  __device__ __forceinline__ void add(float (&sum)[N / 2], float (&total)[N / 2]) const {
    cuda::pin(sum);
#pragma unroll
    for (int i = 0; i < N / 2; ++i) total[i] = __fadd_rn(total[i], sum[i]);
    cuda::pin(sum);
  }

  template <int N>
  __device__ __forceinline__ void multiply(const Walk& walk, Walk::Piece piece) {
    float sum[N / 2], total[kTotals ? N / 2 : 1];
#pragma unroll
    for (float& v : sum) v = 0;
#pragma unroll
    for (float& v : total) v = 0;
    int32_t begin, end;
    Left sums{};
    {
      const Tile t = walk.tile(piece);
      begin = t.begin;
      end = t.end;
      if constexpr (kApart) {
        const int32_t group = t.first_group + t.row_tile / kGroupRowTiles + group_;
        sums.at = plan_.apart.at + plan_.apart.place(begin / p_.k_slice_tiles, group, t.rows.begin / 8);
        sums.count = kGroupRowTiles * group_ < t.row_tiles ? t.rows.count : 0;
      }
    }
    if constexpr (!kApart) take_over<N>(begin > 0, sum, total);
    Groups<N> a;
    wait_until_full(at_);
    typename D::Regs regs = D::load(weights(at_), lane_);
    decode<N, 0>(regs, a[0]);
    cuda::pin(sum);
    Columns left{end - begin, p_.k_slice_tiles - begin % p_.k_slice_tiles, true, 1};
    if constexpr (kSteps / kTogether<D, N> % 2 == 0) {
      while (step<N, 0>(sum, total, regs, a, left, sums)) {
      }
    } else {
      while (step<N, 0>(sum, total, regs, a, left, sums) && step<N, 1>(sum, total, regs, a, left, sums)) {
      }
    }
    cuda::warpgroup_wait<0>();
    cuda::pin(sum);
    at_.finish(plan_.stages);
    release(at_.slot_before(plan_.stages));
    if constexpr (kApart) return leave<N>(sum, sums);
    if (plan_.dealt && piece.end < p_.col_tiles) return hand_over<N>(sum, total, left.of_k_slice == 1);
    if constexpr (kTotals) {
#pragma unroll
      for (int i = 0; i < N / 2; ++i) sum[i] = __fadd_rn(total[i], sum[i]);
      cuda::pin(sum);
    }
    // Looked up again: what a tile is takes registers.
    asm volatile("" : "+r"(piece.tile), "+r"(piece.begin), "+r"(piece.end));
    const Tile t = walk.tile(piece);
    const TileOutput out{p_,
                         *t.part,
                         t.rows,
                         t.row_tile + row_tile_,
                         t.row_tile + 4 * group_,
                         lane_,
                         shared_ + plan_.staging_at + group_ * kStagingBytes,
                         group_};
    out.template store<N, kPaired, kTotals ? 4 : 0>(sum, D::kUnit);
  }

  // ---- A tile that two blocks of threads share: `from` is the one that has its first columns.

  __device__ uint32_t* flag(int32_t from) const {
    return plan_.hand_over.flags + from * kConsumers + group_;
  }
  __device__ float4* handed(int32_t from) const {
    return reinterpret_cast<float4*>(plan_.hand_over.sums) +
           (static_cast<int64_t>(from) * kConsumers + group_) * plan_.hand_over.fours + threadIdx.x % 128;
  }
  template <int N>
  __device__ __forceinline__ void hand_over(const float (&sum)[N / 2], const float (&total)[kTotals ? N / 2 : 1],
                                            bool complete) const {
    const auto from = static_cast<int32_t>(blockIdx.x);
    float4* to = handed(from);
    if constexpr (kTotals) {  // a K slice that is complete belongs to the total
#pragma unroll
      for (int i = 0; i < N / 2; i += 4, to += 128) {
        float v[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) v[k] = complete ? __fadd_rn(total[i + k], sum[i + k]) : total[i + k];
        __stcg(to, make_float4(v[0], v[1], v[2], v[3]));
      }
    }
#pragma unroll
    for (int i = 0; i < N / 2; i += 4, to += 128)
      __stcg(to, kTotals && complete ? float4{} : make_float4(sum[i], sum[i + 1], sum[i + 2], sum[i + 3]));
    asm volatile("bar.sync %0, 128;" : : "r"(2 + group_) : "memory");  // TileOutput's: not in use now
    if (threadIdx.x % 128 == 0)
      asm volatile("fence.acq_rel.gpu;\n st.release.gpu.global.u32 [%0], 1;" : : "l"(flag(from)) : "memory");
  }
  // Does nothing where !shared. Without a branch around what defines sums, for which ptxas would make products wait for
  // each other.
  template <int N>
  __device__ __forceinline__ void take_over(bool shared, float (&sum)[N / 2],
                                            float (&total)[kTotals ? N / 2 : 1]) const {
    const int32_t from = max(static_cast<int32_t>(blockIdx.x) - 1, 0);
    if (shared) {
      if (lane_ == 0) {
        uint32_t there;
        do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(there) : "l"(flag(from)) : "memory");
        while (there == 0);
      }
      __syncwarp();
    }
    const float4* at = handed(from);
    if constexpr (kTotals) {
#pragma unroll
      for (int i = 0; i < N / 2; i += 4, at += 128) load_if(shared, at, &total[i]);
    }
#pragma unroll
    for (int i = 0; i < N / 2; i += 4, at += 128) load_if(shared, at, &sum[i]);
  }
  __device__ static __forceinline__ void load_if(bool wanted, const float4* at, float* v) {
    asm volatile("{\n .reg .pred p;\n setp.ne.u32 p, %5, 0;\n @p ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];\n}"
                 : "+f"(v[0]), "+f"(v[1]), "+f"(v[2]), "+f"(v[3])
                 : "l"(at), "r"(static_cast<uint32_t>(wanted))
                 : "memory");
  }

  const Problem& p_;
  const TilePlan& plan_;
  uint8_t* shared_;
  TileShared s_;
  int lane_, group_, row_tile_;
  Place at_;
};

template <class D, TileSums kSums, bool kPaired, bool kNarrow>
__global__ void __launch_bounds__(kTileThreads, kNarrow ? 2 : 1)
    tile_kernel(const __grid_constant__ Problem p, const __grid_constant__ TilePlan plan,
                const __grid_constant__ CUtensorMap x) {
  if constexpr (!cuda::kForWgmma) {
    __trap();  // never launched: launch_tiles
  } else {
    extern __shared__ __align__(1024) uint8_t shared[];
    const TileShared s{shared_address(shared), shared_address(shared) + plan.barriers_at, plan.stages};
    let_next_kernel_start();
    if (threadIdx.x == 0) {
      for (int i = 0; i < plan.stages; ++i) {
        barrier_init(s.full(i), kCopyWarps);
        barrier_init(s.empty(i), 4 * kConsumers);  // warps of the others
      }
      order_before_copies();
    }
    wait_for_previous_kernels();
    if (p.offsets != nullptr)
      fill_block_table(p, plan.block, block_table(p, plan.block, shared + plan.table_at));
    else
      __syncthreads();
    // Of the registers that the launch gives each thread, copying warps leave some to the others.
    if (threadIdx.x < 128) {
      asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
      TileProducer<D, kSums, kNarrow>(p, plan, x, shared, s).run();
    } else {
      asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" : : "n"(kNarrow ? 96 : 232));
      TileConsumer<D, kSums, kPaired, kNarrow>(p, plan, shared, s).run();
    }
  }
}

}  // namespace quire::gemm
