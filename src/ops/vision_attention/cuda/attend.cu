// Attention in both directions among the rows of a span, by mma.sync: from compute capability 8.0 on. A block computes
// some rows of one head of one span, a warp one or two times 16 of them; all warps bring tiles of keys and values by
// cp.async, the next ones while they compute.
//   S [rows x keys] = Q K^T     operands by ldmatrix; queries stay in registers where heads are small
//   O [rows x d]   += P V       P from registers, V by ldmatrix.trans
// Rows in shared memory are an odd number of 16-byte pieces apart, so that the eight rows of a matrix lie in different
// banks. Of a head whose pieces are odd in number (72 is 9) the last step over its columns is one of eight.
//
// Tiles of keys begin at multiples of their size from the span's first row on, in ascending order, so a row's bits
// depend on its span alone. A head that none of the instances is made for is padded with zeros to the next wider one.
#include <cuda_runtime.h>

#include <algorithm>

#include "core/cuda/dependent_launch.cuh"
#include "core/cuda/launch.h"
#include "ops/attention/cuda/ptx.cuh"
#include "ops/vision_attention/cuda/attend.h"

namespace quire::cuda {
namespace {

using bf16_t = __nv_bfloat16;
constexpr float kLog2e = 1.4426950408889634f;

// Two products of 16 rows share the operands that ldmatrix brings, where registers suffice.
template <int D>
struct Shape {
  static constexpr int kPieces = D / 8;               // of 16 bytes
  static constexpr int kColumns = D > 256 ? 256 : D;  // of the output, of one block
  static constexpr int kTimes = D <= 80 ? 2 : 1;      // 16 rows of a warp
  static constexpr int kWarps = D <= 80 ? 4 : D <= 128 ? 8 : D <= 256 ? 4 : 2;
  static constexpr int kThreads = 32 * kWarps, kRows = kWarps * 16 * kTimes;
  static constexpr int kKeys = D <= 128 ? 64 : D <= 256 ? 32 : 16;  // of a tile
  static constexpr bool kHoldsQueries = D <= 128;
  static constexpr int kPitch = (kPieces | 1) * 16, kValuePitch = (kColumns / 8 | 1) * 16;  // bytes
  static constexpr int kQueryBytes = kRows * kPitch;
  static constexpr int kValuesAt = kKeys * kPitch, kStageBytes = kValuesAt + kKeys * kValuePitch;
  // Queries that move to registers lie where the second stage comes.
  static constexpr int kQueriesAt = kHoldsQueries ? kStageBytes : 2 * kStageBytes;
  static constexpr int kBytes = std::max(2 * kStageBytes, kQueriesAt + kQueryBytes);
  static_assert(kBytes <= 99 << 10, "what a block has on every GPU");
};

// What a block computes: rows [row, row + rows) of the batch at first, of the span's `count` from `first_key` on.
struct Work {
  int32_t span_row, count;  // of the span
  int32_t first;            // of the block's rows in the span
  int32_t head, first_column;
};

// As mma.m16n8k8: half of a step over the columns.
__device__ __forceinline__ void mma_bf16_half(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t b0) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(b0));
}

// Rows `first` to first + kCount of a head to shared memory; zeros for those from `end` on, and for pieces that the
// head does not have. All threads call it.
template <int kThreads, int kCount, int kPieces, int kPitch>
__device__ __forceinline__ void fetch_rows(uint32_t to, const bf16_t* head, int64_t stride, int first, int end,
                                           int pieces) {
  const auto piece = [&](int r, int c) {
    const bool there = first + r < end && c < pieces;
    copy_async16(to + r * kPitch + c * 16, there ? head + (first + r) * stride + c * 8 : head, there);
  };
  const int thread = static_cast<int>(threadIdx.x);
  constexpr int kWhole = kPieces / 8 * 8, kRest = kPieces - kWhole, kStep = kThreads / 8;
  if constexpr (kWhole > 0) {
#pragma unroll
    for (int r = 0; r < kCount; r += kStep) {
#pragma unroll
      for (int c = 0; c < kWhole; c += 8)
        if (kCount % kStep == 0 || r + thread / 8 < kCount) piece(r + thread / 8, c + thread % 8);
    }
  }
  if constexpr (kRest > 0) {
#pragma unroll
    for (int i = 0; i < kCount * kRest; i += kThreads)
      if ((kCount * kRest) % kThreads == 0 || i + thread < kCount * kRest)
        piece((i + thread) / kRest, kWhole + (i + thread) % kRest);
  }
}

// A warp's rows.
template <int D>
class WarpRows {
  using S = Shape<D>;
  static constexpr int kSteps = D / 16, kTiles = S::kKeys / 8, kOutTiles = S::kColumns / 8;
  static constexpr bool kHalfStep = D % 16 == 8;
  static_assert(!kHalfStep || (S::kTimes == 2 && S::kHoldsQueries && S::kKeys % 32 == 0));

 public:
  __device__ __forceinline__ WarpRows(const AttendParams& params, const Work& work, uint32_t shared)
      : a(params), w(work), base(shared), lane(static_cast<int>(threadIdx.x) % 32), unit(params.scale * kLog2e) {
    queries_at = base + S::kQueriesAt + (warp_row() + lane % 16) * S::kPitch + lane / 16 * 16;
    keys_at = base + (lane / 16 * 8 + lane % 8) * S::kPitch + lane / 8 % 2 * 16;
    values_at = base + S::kValuesAt + lane % 16 * S::kValuePitch + lane / 16 * 16;
  }

  __device__ __forceinline__ void run() {
    const int tiles = (w.count + S::kKeys - 1) / S::kKeys;
    fetch_rows<S::kThreads, S::kRows, S::kPieces, S::kPitch>(base + S::kQueriesAt, head_of(a.q, a.q_stride), a.q_stride,
                                                             w.first, w.count, a.d / 8);
    fetch(0);
    commit_copies();
    clear();
    if constexpr (S::kHoldsQueries) {
      wait_copies<0>();
      __syncthreads();
      load_queries();
    }
    for (int j = 0; j < tiles; ++j) {
      wait_copies<0>();
      __syncthreads();  // tile j is there for all warps, and all have left the tile before, and the queries
      if (j + 1 < tiles) fetch(j + 1);
      commit_copies();
      const int stage = j % 2 * S::kStageBytes;
      multiply_keys(stage);
      if ((j + 1) * S::kKeys > w.count) mask(j * S::kKeys);
      softmax();
      multiply_values(stage);
    }
    store();
  }

 private:
  static __device__ __forceinline__ int warp_row() { return static_cast<int>(threadIdx.x) / 32 * 16 * S::kTimes; }
  __device__ __forceinline__ const bf16_t* head_of(const bf16_t* rows, int64_t stride) const {
    return rows + w.span_row * stride + w.head * a.d;
  }
  template <int kCount>
  static __device__ __forceinline__ float (&four(float (&x)[kCount], int i))[4] {
    return reinterpret_cast<float(&)[4]>(x[4 * i]);
  }

  __device__ __forceinline__ void fetch(int j) const {
    const uint32_t to = base + j % 2 * S::kStageBytes;
    fetch_rows<S::kThreads, S::kKeys, S::kPieces, S::kPitch>(to, head_of(a.k, a.k_stride), a.k_stride, j * S::kKeys,
                                                             w.count, a.d / 8);
    fetch_rows<S::kThreads, S::kKeys, S::kColumns / 8, S::kValuePitch>(
        to + S::kValuesAt, head_of(a.v, a.v_stride) + w.first_column, a.v_stride, j * S::kKeys, w.count,
        (a.d - w.first_column) / 8);
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int m = 0; m < S::kTimes; ++m) {
#pragma unroll
      for (float& x : out[m]) x = 0.0f;
#pragma unroll
      for (int r = 0; r < 2; ++r) max[m][r] = -INFINITY, total[m][r] = 0.0f;
    }
  }

  __device__ __forceinline__ void load_query(uint32_t (&q)[4], int m, int step) const {
    load_matrices(q, queries_at + m * 16 * S::kPitch + step * 32);
  }
  __device__ __forceinline__ void load_queries() {
#pragma unroll
    for (int m = 0; m < S::kTimes; ++m) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) load_query(query[m][step], m, step);
    }
    // The last eight columns of 32 rows: two registers for each 16 of them.
    if constexpr (kHalfStep)
      load_matrices(half_query, base + S::kQueriesAt + (warp_row() + lane) * S::kPitch + kSteps * 32);
  }

  __device__ __forceinline__ void multiply_keys(int stage) {
#pragma unroll
    for (int m = 0; m < S::kTimes; ++m) {
#pragma unroll
      for (float& x : score[m]) x = 0.0f;
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t own[S::kTimes][4];
      if constexpr (!S::kHoldsQueries) {
#pragma unroll
        for (int m = 0; m < S::kTimes; ++m) load_query(own[m], m, step);
      }
#pragma unroll
      for (int n = 0; n < kTiles / 2; ++n) {
        uint32_t k[4];
        load_matrices(k, keys_at + stage + n * 16 * S::kPitch + step * 32);
#pragma unroll
        for (int m = 0; m < S::kTimes; ++m) {
          const auto& q = S::kHoldsQueries ? query[m][S::kHoldsQueries ? step : 0] : own[m];
          mma_bf16(four(score[m], 2 * n), q, k[0], k[1]);
          mma_bf16(four(score[m], 2 * n + 1), q, k[2], k[3]);
        }
      }
    }
    if constexpr (kHalfStep) {
#pragma unroll
      for (int n = 0; n < kTiles / 4; ++n) {
        uint32_t k[4];
        load_matrices(k, base + stage + (n * 32 + lane) * S::kPitch + kSteps * 32);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
          for (int m = 0; m < S::kTimes; ++m)
            mma_bf16_half(four(score[m], 4 * n + i), half_query[2 * m], half_query[2 * m + 1], k[i]);
        }
      }
    }
  }

  // Keys past the span's end.
  __device__ __forceinline__ void mask(int first) {
    const int key = first + 2 * (lane % 4);
#pragma unroll
    for (int i = 0; i < S::kKeys / 2; ++i) {
      if (key + i / 4 * 8 + i % 2 < w.count) continue;
#pragma unroll
      for (int m = 0; m < S::kTimes; ++m) score[m][i] = -INFINITY;
    }
  }

  // Scores to weights 2^(score - max), and what earlier weights made to what it is beside them.
  __device__ __forceinline__ void softmax() {
    float alpha[S::kTimes][2];
    bool moved = false;
#pragma unroll
    for (int m = 0; m < S::kTimes; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        alpha[m][r] = weigh_row(score[m], r, max[m][r], total[m][r]);
        moved |= alpha[m][r] != 1.0f;
      }
    }
    // Multiplying by exactly 1 changes nothing: skipped while no row's maximum moves.
    if (!__any_sync(~0u, moved)) return;
#pragma unroll
    for (int m = 0; m < S::kTimes; ++m) {
#pragma unroll
      for (int i = 0; i < S::kColumns / 2; ++i) out[m][i] *= alpha[m][i % 4 / 2];
    }
  }
  __device__ __forceinline__ float weigh_row(float (&scores)[S::kKeys / 2], int r, float& most, float& sum) const {
    float next = most;
#pragma unroll
    for (int i = 0; i < S::kKeys / 2; i += 4) next = fmaxf(next, fmaxf(scores[i + 2 * r], scores[i + 2 * r + 1]));
    next = fmaxf(next, __shfl_xor_sync(~0u, next, 1));
    next = fmaxf(next, __shfl_xor_sync(~0u, next, 2));
    const float alpha = exp2_approx(__fmul_rn(__fsub_rn(most, next), unit)), shift = __fmul_rn(next, unit);
    most = next;
    float added = 0.0f;
#pragma unroll
    for (int i = 0; i < S::kKeys / 2; i += 4) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float& s = scores[i + 2 * r + c];
        s = exp2_approx(fmaf(s, unit, -shift));
        added += s;
      }
    }
    sum = fmaf(sum, alpha, added);
    return alpha;
  }

  __device__ __forceinline__ void multiply_values(int stage) {
    // 16 keys a step; of a head with an odd number of pieces, the last one comes for two steps at once.
    uint32_t last[4];
#pragma unroll
    for (int step = 0; step < S::kKeys / 16; ++step) {
      uint32_t p[S::kTimes][4];
#pragma unroll
      for (int m = 0; m < S::kTimes; ++m) {
#pragma unroll
        for (int x = 0; x < 4; ++x) p[m][x] = pack_bf16(score[m][8 * step + 2 * x], score[m][8 * step + 2 * x + 1]);
      }
#pragma unroll
      for (int n = 0; n < kOutTiles / 2; ++n) {
        uint32_t v[4];
        load_matrices_transposed(v, values_at + stage + step * 16 * S::kValuePitch + n * 32);
#pragma unroll
        for (int m = 0; m < S::kTimes; ++m) {
          mma_bf16(four(out[m], 2 * n), p[m], v[0], v[1]);
          mma_bf16(four(out[m], 2 * n + 1), p[m], v[2], v[3]);
        }
      }
      if constexpr (kHalfStep) {
        if (step % 2 == 0)
          load_matrices_transposed(
              last, base + stage + S::kValuesAt + (step * 16 + lane) * S::kValuePitch + kOutTiles / 2 * 32);
#pragma unroll
        for (int m = 0; m < S::kTimes; ++m)
          mma_bf16(four(out[m], kOutTiles - 1), p[m], last[step % 2 * 2], last[step % 2 * 2 + 1]);
      }
    }
  }

  __device__ __forceinline__ void store() {
#pragma unroll
    for (int m = 0; m < S::kTimes; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float sum = total[m][r];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        const int row = w.first + warp_row() + m * 16 + r * 8 + lane / 4;
        if (row >= w.count) continue;
        const float inverse = __fdividef(1.0f, sum);
        const int column = w.first_column + 2 * (lane % 4);
        bf16_t* const to = a.out + (w.span_row + row) * a.out_stride + w.head * a.d + column;
#pragma unroll
        for (int i = 0; i < kOutTiles; ++i) {
          if (column + 8 * i >= a.d) break;
          *reinterpret_cast<uint32_t*>(to + 8 * i) =
              pack_bf16(out[m][4 * i + 2 * r] * inverse, out[m][4 * i + 2 * r + 1] * inverse);
        }
      }
    }
  }

  const AttendParams& a;
  const Work& w;
  const uint32_t base;
  const int lane;
  const float unit;
  uint32_t queries_at, keys_at, values_at;
  // [4 i + 2 r + c] is row lane / 4 + 8 r, column 8 i + 2 (lane % 4) + c, of each 16 rows.
  float out[S::kTimes][S::kColumns / 2], score[S::kTimes][S::kKeys / 2], max[S::kTimes][2], total[S::kTimes][2];
  uint32_t query[S::kTimes][S::kHoldsQueries ? kSteps : 1][4], half_query[4];
};

// Blocks of a head follow each other, as they read the same keys. There is room for the longest span everywhere, and a
// block that has no rows ends.
template <int D>
__global__ void __launch_bounds__(Shape<D>::kThreads, D <= 80 ? 2 : 1)
    attend_kernel(const __grid_constant__ AttendParams a) {
  using S = Shape<D>;
  constexpr int kParts = (D + S::kColumns - 1) / S::kColumns;
  extern __shared__ __align__(128) char shared[];
  begin_kernel(a);
  const auto tiles = static_cast<unsigned>((a.most_rows + S::kRows - 1) / S::kRows);
  unsigned at = blockIdx.x;
  Work w;
  w.first = static_cast<int32_t>(at % tiles) * S::kRows;
  at /= tiles;
  w.first_column = static_cast<int32_t>(at % kParts) * S::kColumns;
  at /= kParts;
  w.head = static_cast<int32_t>(at % static_cast<unsigned>(a.heads));
  const RowSpan span = a.spans[at / static_cast<unsigned>(a.heads)];
  w.span_row = span.row;
  w.count = span.count;
  if (w.first >= w.count || w.first_column >= a.d) return;
  WarpRows<D>(a, w, shared_address(shared)).run();
}

template <int D>
Status launch_heads(cudaStream_t stream, const AttendParams& p) {
  using S = Shape<D>;
  constexpr int64_t kParts = (D + S::kColumns - 1) / S::kColumns;
  const int64_t blocks = (p.most_rows + S::kRows - 1) / S::kRows * kParts * p.heads * p.span_count;
  if (blocks > INT32_MAX) return Error{Fault::kBug, fmt::format("vision_attention: {} blocks", blocks)};
  return launch(stream, "vision_attention", attend_kernel<D>, dim3(static_cast<unsigned>(blocks)), S::kThreads,
                S::kBytes, p);
}

}  // namespace

Status launch_attend(cudaStream_t stream, const AttendParams& p) {
  if (p.span_count <= 0 || p.most_rows <= 0 || p.heads <= 0) return {};
  if (p.d <= 32) return launch_heads<32>(stream, p);
  if (p.d <= 64) return launch_heads<64>(stream, p);
  if (p.d <= 72) return launch_heads<72>(stream, p);
  if (p.d <= 80) return launch_heads<80>(stream, p);
  if (p.d <= 128) return launch_heads<128>(stream, p);
  if (p.d <= 256) return launch_heads<256>(stream, p);
  return launch_heads<512>(stream, p);
}

}  // namespace quire::cuda
