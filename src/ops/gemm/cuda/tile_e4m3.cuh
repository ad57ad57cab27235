// Many rows of tokens in E4M3 by weights in E4M3 (TileFormat::kFp8): persistent blocks multiply tiles of 128 rows of a
// weight by up to 256 rows of x with wgmma, both operands as they are. Four warps copy, two warpgroups multiply 64 rows
// each. Rows of x may be sorted by expert.
//
// A packed tile holds codes in the order of a bf16 operand (decode.cuh): a lane's two words of a step of 16 columns
// have columns 2t, 2t+1, 2t+8, 2t+9 of row g in their lower halves, and of row g+8 in the upper ones. wgmma wants four
// neighbouring columns in a register. Which columns a sum of products names neighbours is free if both operands agree,
// so weights stay as they are and the tokens' columns are exchanged where they are rounded (quantize_e4m3.cuh).
//
// A block of 128 columns is one float32 accumulator of the tensor cores, four products in ascending order; then
// total = fma(sum, scale of x * scale of w, total), blocks in ascending order. So a row's bits depend on that row
// alone.
#pragma once

#include "ops/gemm/cuda/copy.cuh"
#include "ops/gemm/cuda/decode.cuh"
#include "ops/gemm/cuda/problem.cuh"
#include "ops/gemm/cuda/quantize_e4m3.cuh"
#include "ops/gemm/cuda/tile_epilogue.cuh"
#include "ops/gemm/cuda/tile_walk.cuh"
#include "ops/gemm/cuda/wgmma.cuh"
#include "ops/gemm/cuda/wgmma_e4m3.cuh"

namespace quire::gemm::e4m3 {

inline constexpr int kWarpgroups = 2;  // that multiply
inline constexpr int kThreads = 128 * (1 + kWarpgroups);
inline constexpr int kCopyWarps = 4;
inline constexpr int kStageWeights = kTileRowTiles * 2 * tile_bytes(TileFormat::kFp8);

struct Plan : TileGrid {
  int32_t stages, stage_bytes;
  int32_t staging_at, barriers_at, table_at, shared_bytes;
};

struct Shared {
  uint32_t ring, barriers;  // barriers: full[stages], empty[stages]
  int32_t stages;
  __device__ uint32_t full(int slot) const { return barriers + 8 * slot; }
  __device__ uint32_t empty(int slot) const { return barriers + 8 * (stages + slot); }
};

struct Place {
  int32_t slot = 0;
  uint32_t phase = 0;
  __device__ void next(int stages) {
    if (++slot == stages) slot = 0, phase ^= 1u;
  }
};

// A stage: [8 row tiles][2 column tiles] of weights, tokens [kRows][128], scales [kRows].
template <int kRows>
inline constexpr int kStageBytes = kStageWeights + kRows*(kBlockCols + 4);
static_assert(kStageWeights % 1024 == 0);

// Rows of x that a tile of `count` multiplies. Of experts few rows more than there are: each width is code of its own,
// and the tokens come in boxes of so many rows.
inline constexpr int kGroupedBox = 32, kGroupedRows = 192;
template <int kRows, bool kGrouped>
struct Widths {
  static constexpr int kBox = kGrouped ? kGroupedBox : kRows;
  static constexpr bool has(int n) {
    if (!kGrouped) return n == kRows;
    return n == 32 || n == 64 || n == 96 || n == 128 || n == 192;
  }
  __host__ __device__ static constexpr int of(int count) {
    if (!kGrouped) return kRows;
    int n = (count + 31) / 32 * 32;
    while (n < kRows && !has(n)) n += 32;
    return n < 32 ? 32 : n;
  }
};

// By each of four warps: two row tiles and every fourth box of tokens, and by one of them the tokens' scales. One warp
// for all is bound by the number of its copies.
template <int kRows, bool kGrouped>
__device__ __forceinline__ void copy_tiles(const Problem& p, const Plan& plan, const RoundedRows& x,
                                           const CUtensorMap& codes, const Shared& s, const BlockTable& table) {
  using W = Widths<kRows, kGrouped>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  constexpr int kRun = 2 * tile_bytes(TileFormat::kFp8), kRuns = kTileRowTiles / kCopyWarps;
  constexpr int kBoxes = (kRows / W::kBox + kCopyWarps - 1) / kCopyWarps, kBoxBytes = W::kBox * kBlockCols;
  const bool scales = warp == kCopyWarps / 2;
  TileWalk<kTileRowTiles> walk(p, plan, table);
  Place at;
  for (TileWalk<kTileRowTiles>::Piece piece; walk.next(piece);) {
    const Tile t = walk.tile(piece);
    const int width = W::of(t.rows.count), runs = (t.row_tiles + kCopyWarps - 1 - warp) / kCopyWarps,
              boxes = (width / W::kBox + kCopyWarps - 1 - warp) / kCopyWarps;
    const int bytes = runs * kRun + boxes * kBoxBytes + (scales ? width * 4 : 0);
    int32_t first_scale = t.rows.begin;
    if constexpr (kGrouped) {
      const int32_t begin = table.begin[t.rows.expert];
      first_scale += first_scale_of(begin, t.rows.expert) - begin;
    }
    for (int32_t c = 0; c < p.col_tiles; c += 2) {
      barrier_wait(s.empty(at.slot), at.phase ^ 1u);
      __syncwarp();
      const uint32_t to = s.ring + at.slot * plan.stage_bytes, barrier = s.full(at.slot);
      if (lane == 0) barrier_expect(barrier, bytes);
      __syncwarp();
      if (lane < runs) {
        const int run = warp + kCopyWarps * lane;
        copy_bulk(to + run * kRun, t.weight + (static_cast<int64_t>(t.row_tile + run) * p.col_tiles + c) * (kRun / 2),
                  kRun, barrier);
      } else if (lane >= kRuns && lane < kRuns + boxes) {
        const int box = warp + kCopyWarps * (lane - kRuns);
        copy_box(to + kStageWeights + box * kBoxBytes, &codes, c * kTileCols / 2, t.rows.begin + box * W::kBox,
                 barrier);
      } else if (scales && lane == kRuns + kBoxes) {
        copy_bulk(to + kStageWeights + kRows * kBlockCols, x.scales + c / 2 * x.scale_stride + first_scale, width * 4,
                  barrier);
      }
      at.next(plan.stages);
    }
  }
}

// In pieces of up to 128 rows of x: the sums of one and the totals of all are what registers hold. While one warpgroup
// adds, the other multiplies.
template <int kRows, bool kPaired, bool kGrouped>
class Multiplier {
 public:
  __device__ Multiplier(const Problem& p, const Plan& plan, uint8_t* shared, const Shared& s, const BlockTable& table)
      : p_(p), plan_(plan), table_(table), shared_(shared), s_(s), lane_(threadIdx.x % 32) {
    group_ = threadIdx.x / 128 - 1;
    row_tile_ = threadIdx.x / 32 - 4;
  }

  __device__ __forceinline__ void run() {
    Walk walk(p_, plan_, table_);
    for (Walk::Piece piece; walk.next(piece);) {
      if constexpr (kGrouped) {
        run_width<kGroupedBox>(W::of(walk.tile(piece).rows.count), walk, piece);
      } else {
        multiply<kRows>(walk, piece);
      }
    }
  }

 private:
  using W = Widths<kRows, kGrouped>;
  using Walk = TileWalk<kTileRowTiles>;

  template <int N>
  __device__ __forceinline__ void run_width(int width, const Walk& walk, const Walk::Piece& piece) {
    if constexpr (W::has(N)) {
      if (width == N) return multiply<N>(walk, piece);
    }
    if constexpr (N < kRows) run_width<N + 32>(width, walk, piece);
  }

  template <int N>
  __device__ __forceinline__ void multiply(const Walk& walk, const Walk::Piece& piece) {
    float total[N / 2];
#pragma unroll
    for (float& v : total) v = 0;
    for (int32_t c = 0; c < p_.col_tiles; c += 2) block<N>(total);
    const Tile t = walk.tile(piece);
    const TileOutput out{p_,
                         *t.part,
                         t.rows,
                         t.row_tile + row_tile_,
                         t.row_tile + 4 * group_,
                         lane_,
                         shared_ + plan_.staging_at + group_ * kStagingBytes,
                         group_};
    out.meet();  // all four warps have read what the tile before left in the staging memory
    out.template store<N, kPaired, 4>(total, 1.0f);
  }

  // Rows of x of a piece.
  template <int N>
  static constexpr int kPiece = N <= 128 ? N : N / 2;

  // Four products of 32 columns.
  using Weights = uint32_t[4][4];
  __device__ __forceinline__ void load(uint32_t at, Weights& a) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4 v = load_shared_128(at + i / 2 * tile_bytes(TileFormat::kFp8) + i % 2 * 512 + lane_ * 16);
      a[i][0] = __byte_perm(v.x, v.y, 0x5410);
      a[i][1] = __byte_perm(v.x, v.y, 0x7632);
      a[i][2] = __byte_perm(v.z, v.w, 0x5410);
      a[i][3] = __byte_perm(v.z, v.w, 0x7632);
    }
  }
  template <int N>
  __device__ __forceinline__ void begin(float (&sum)[N / 2], const Weights& a, uint64_t x) const {
    cuda::warpgroup_fence();
#pragma unroll
    for (int i = 0; i < 4; ++i) WgmmaE4m3<N>::multiply(sum, a[i], x + 2 * i, i);
    cuda::warpgroup_commit();
  }
  // The sums of a piece, multiplied by the scales, to its totals.
  template <int N>
  __device__ __forceinline__ void add(float (&sum)[N / 2], float* total, uint32_t scales, float w, float w8) const {
    cuda::pin(sum);
#pragma unroll
    for (int i = 0; i < N / 8; ++i) {
      const uint2 v = load_shared_64(scales + 8 * i * 4);
      const float x0 = __uint_as_float(v.x), x1 = __uint_as_float(v.y);
      float* to = total + 4 * i;
      to[0] = __fmaf_rn(sum[4 * i], __fmul_rn(x0, w), to[0]);
      to[1] = __fmaf_rn(sum[4 * i + 1], __fmul_rn(x1, w), to[1]);
      to[2] = __fmaf_rn(sum[4 * i + 2], __fmul_rn(x0, w8), to[2]);
      to[3] = __fmaf_rn(sum[4 * i + 3], __fmul_rn(x1, w8), to[3]);
    }
    cuda::pin(sum);
  }

  template <int N, int kFirst = 0>
  __device__ __forceinline__ void pieces(float (&total)[N / 2], const Weights& a, uint64_t x, uint32_t scales, float w,
                                         float w8) const {
    constexpr int kOwn = kPiece<N>;
    float sum[kOwn / 2];
    begin<kOwn>(sum, a, x + kFirst * kBlockCols / 16);
    cuda::warpgroup_wait<0>();
    add<kOwn>(sum, total + kFirst / 2, scales + kFirst * 4, w, w8);
    if constexpr (kFirst + kOwn < N) pieces<N, kFirst + kOwn>(total, a, x, scales, w, w8);
  }

  // A block of 128 columns.
  template <int N>
  __device__ __forceinline__ void block(float (&total)[N / 2]) {
    barrier_wait(s_.full(at_.slot), at_.phase);
    const uint32_t stage = s_.ring + at_.slot * plan_.stage_bytes;
    const uint32_t weights = stage + row_tile_ * 2 * tile_bytes(TileFormat::kFp8), tokens = stage + kStageWeights;
    Weights a;
    load(weights, a);
    const uint2 v = load_shared_64(weights + 1024 + lane_ / 4 * 8);
    const float w = __fmul_rn(__uint_as_float(v.x), 0x1p-8f), w8 = __fmul_rn(__uint_as_float(v.y), 0x1p-8f);
    pieces<N>(total, a, token_descriptor(tokens), tokens + kRows * kBlockCols + lane_ % 4 * 8, w, w8);
    __syncwarp();  // what all lanes have read comes before the arrival of one, which lets the stage be written again
    if (lane_ == 0) barrier_arrive(s_.empty(at_.slot));
    at_.next(plan_.stages);
  }

  const Problem& p_;
  const Plan& plan_;
  const BlockTable table_;
  uint8_t* shared_;
  Shared s_;
  int lane_, group_, row_tile_;
  Place at_;
};

template <int kRows, bool kPaired, bool kGrouped>
__global__ void __launch_bounds__(kThreads, 1)
    e4m3_tiles(const __grid_constant__ Problem p, const __grid_constant__ Plan plan,
               const __grid_constant__ RoundedRows x, const __grid_constant__ CUtensorMap codes) {
  if constexpr (!cuda::kForWgmma) {
    __trap();  // never launched
  } else {
    extern __shared__ __align__(1024) uint8_t shared[];
    const Shared s{shared_address(shared), shared_address(shared) + plan.barriers_at, plan.stages};
    let_next_kernel_start();
    if (threadIdx.x == 0) {
      for (int i = 0; i < plan.stages; ++i) {
        barrier_init(s.full(i), kCopyWarps);
        barrier_init(s.empty(i), 4 * kWarpgroups);  // warps that multiply
      }
      order_before_copies();
    }
    wait_for_previous_kernels();
    BlockTable table{};
    if constexpr (kGrouped) {
      table = block_table(p, plan.block, shared + plan.table_at);
      fill_block_table(p, plan.block, table);
    }
    __syncthreads();
    if (threadIdx.x < 128) {
      asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
      copy_tiles<kRows, kGrouped>(p, plan, x, codes, s, table);
    } else {
      asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
      Multiplier<kRows, kPaired, kGrouped>(p, plan, shared, s, table).run();
    }
  }
}

template <int kRows>
bool lay_out(Plan& plan, int table_bytes, int shared_bytes) {
  constexpr int kBarriers = 2 * 8 * 8;
  const int beside = kWarpgroups * kStagingBytes + kBarriers + table_bytes;
  plan.stage_bytes = (kStageBytes<kRows> + 1023) / 1024 * 1024;
  plan.stages = (shared_bytes - beside) / plan.stage_bytes;
  if (plan.stages > 8) plan.stages = 8;
  plan.staging_at = plan.stages * plan.stage_bytes;
  plan.barriers_at = plan.staging_at + kWarpgroups * kStagingBytes;
  plan.table_at = plan.barriers_at + kBarriers;
  plan.shared_bytes = plan.table_at + table_bytes;
  return plan.stages >= 2;
}

}  // namespace quire::gemm::e4m3
