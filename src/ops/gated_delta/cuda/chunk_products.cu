// The part of the chunked form that does not depend on the state, for all chunks at once: one block of 4
// warps per chunk and key head makes K K^T and Q K^T on tensor cores, and for each of its value heads P and
// the inverse in float32.
#include "core/cuda/launch.h"
#include "core/cuda/tensor_core.cuh"
#include "ops/gated_delta/cuda/chunk.cuh"
#include "ops/gated_delta/cuda/device.cuh"

namespace quire::cuda {
namespace {

constexpr int kD = kDeltaHead;
constexpr int kThreads = 128;
constexpr int kRowPitch = kD + 8;               // bf16: rows 272 bytes apart, so that 8 rows meet in no bank
constexpr int kMatrixPitch = kChunk + 4;        // float32
constexpr int kWeightPitch = kChunk + 8;        // bf16
constexpr int kSolve = 16;                      // rows of a block of the inverse
constexpr float kScale = 0.08838834764831845f;  // Dk^(-1/2)

struct Shared {
  union {
    __nv_bfloat16 k[kChunk][kRowPitch];
    __nv_bfloat16 weights[kChunk][kWeightPitch];  // P, once the products are in registers
  };
  union {
    __nv_bfloat16 q[kChunk][kRowPitch];
    float a[kChunk][kMatrixPitch];
  };
  float inverse[kChunk][kMatrixPitch];
  float high[kChunk], low[kChunk];  // c_i in two floats
  float beta[kChunk];
};

struct Chunk {
  const GdnChunkedParams& p;
  Shared& sh;
  const int64_t row;  // first row of the batch
  const int tokens, key_head;
  // Roles of warps are not of one weight: they rotate, so that no scheduler of the multiprocessor gets all
  // the heavy ones.
  const int rotation = static_cast<int>((blockIdx.x + blockIdx.y * gridDim.x) * 2654435761u >> 30);
  const int thread = static_cast<int>(threadIdx.x), warp = (thread / 32 + rotation) % 4, lane = thread % 32;
  float kk[8][4], qk[8][4];  // 16 rows of the products per warp, columns 8 n ...

  __device__ void load() {
    constexpr int kPieces = kD / 8;
    for (int i = thread; i < kChunk * kPieces; i += kThreads) {
      const int t = i / kPieces, piece = i % kPieces;
      const bool valid = t < tokens;
      const int64_t at = ((row + (valid ? t : 0)) * p.shape.Hk + key_head) * kD + piece * 8;
      copy_async(&sh.k[t][piece * 8], p.k + at, valid);
      copy_async(&sh.q[t][piece * 8], p.q + at, valid);
    }
    copy_commit();
    copy_wait<0>();
  }

  // K K^T and Q K^T, blocks on and below the diagonal.
  __device__ void multiply() {
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) kk[n][e] = qk[n][e] = 0.0f;
    const int a_row = warp * 16 + lane % 16, a_column = lane / 16 * 8;
    const int b_row = lane % 8 + lane / 16 * 8, b_column = lane / 8 % 2 * 8;
#pragma unroll
    for (int s = 0; s < kD / 16; ++s) {
      uint32_t ak[4], aq[4];
      load_matrices(ak, shared_address(&sh.k[a_row][s * 16 + a_column]));
      load_matrices(aq, shared_address(&sh.q[a_row][s * 16 + a_column]));
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        if (n > warp) break;
        uint32_t b[4];
        load_matrices(b, shared_address(&sh.k[n * 16 + b_row][s * 16 + b_column]));
        mma_bf16(kk[2 * n], ak, b[0], b[1]);
        mma_bf16(kk[2 * n + 1], ak, b[2], b[3]);
        mma_bf16(qk[2 * n], aq, b[0], b[1]);
        mma_bf16(qk[2 * n + 1], aq, b[2], b[3]);
      }
    }
  }

  // Running sums of the log decays, in float64: e^(c_i - c_j) must be good to float32 although c may be in
  // the tens of thousands. Below -1000 a token leaves nothing in any case.
  __device__ void decays(int head, ChunkData& out) {
    if (warp != 0) return;
    double c[2];
    float beta[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int t = 2 * lane + i;
      const int64_t at = (row + t) * p.shape.Hv + head;
      c[i] = t < tokens ? static_cast<double>(fmaxf(p.g[at], -1000.0f)) : 0.0;
      beta[i] = t < tokens ? p.beta[at] : 0.0f;
    }
    double sum = c[0] + c[1];
    c[1] = sum;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const double other = __shfl_up_sync(kAllLanes, sum, step);
      if (lane >= step) sum += other;
    }
    const double before = sum - c[1], last = __shfl_sync(kAllLanes, sum, 31);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int t = 2 * lane + i;
      const double x = before + c[i];
      sh.high[t] = static_cast<float>(x);
      sh.low[t] = static_cast<float>(x - static_cast<double>(sh.high[t]));
      sh.beta[t] = beta[i];
      out.factors[kEntry][t] = expf(static_cast<float>(x));
      out.factors[kExit][t] = expf(static_cast<float>(last - x));
      out.factors[kBeta][t] = beta[i];
    }
  }

  // A and P from the products, each thread its elements.
  __device__ void triangles() {
    const int row_in_half = warp * 16 + lane / 4;
    float high[2], low[2], beta[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = row_in_half + half * 8;
      high[half] = sh.high[i], low[half] = sh.low[i], beta[half] = sh.beta[i];
    }
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      if (n > 2 * warp + 1) break;
      const int j = n * 8 + lane % 4 * 2;
      const float2 high_j = *reinterpret_cast<const float2*>(&sh.high[j]);
      const float2 low_j = *reinterpret_cast<const float2*>(&sh.low[j]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = row_in_half + half * 8;
        float a[2], w[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float c = (high[half] - (e == 0 ? high_j.x : high_j.y)) + (low[half] - (e == 0 ? low_j.x : low_j.y));
          const float left = __expf(fminf(c, 0.0f));  // above the diagonal the exponent is positive
          a[e] = j + e < i ? beta[half] * kk[n][2 * half + e] * left : 0.0f;
          w[e] = j + e <= i ? kScale * qk[n][2 * half + e] * left : 0.0f;
        }
        *reinterpret_cast<float2*>(&sh.a[i][j]) = {a[0], a[1]};
        *reinterpret_cast<uint32_t*>(&sh.weights[i][j]) = pack_bf16(w[0], w[1]);
      }
    }
  }

  // The inverse of a diagonal block, a column per lane, by substitution.
  __device__ void invert_diagonal() {
    if (lane >= kSolve) return;
    const int first = warp * kSolve;
    float x[kSolve];
#pragma unroll
    for (int i = 0; i < kSolve; ++i) {
      float sum = i == lane ? 1.0f : 0.0f;
#pragma unroll
      for (int m = 0; m < i; m += 4) {
        const float4 f = *reinterpret_cast<const float4*>(&sh.a[first + i][first + m]);
        sum = fmaf(-f.x, x[m], sum);
        if (m + 1 < i) sum = fmaf(-f.y, x[m + 1], sum);
        if (m + 2 < i) sum = fmaf(-f.z, x[m + 2], sum);
        if (m + 3 < i) sum = fmaf(-f.w, x[m + 3], sum);
      }
      x[i] = sum;
      sh.inverse[first + i][first + lane] = sum;
    }
  }

  // sum += m [16, 16] x [16, 8 columns]; a lane has 4 elements of row lane / 2.
  __device__ void multiply_block(float4& sum, const float (*m)[kMatrixPitch], int m_column,
                                 const float (*x)[kMatrixPitch], int x_column) const {
#pragma unroll
    for (int k = 0; k < kSolve; k += 4) {
      const float4 f = *reinterpret_cast<const float4*>(&m[lane / 2][m_column + k]);
      const float factors[4] = {f.x, f.y, f.z, f.w};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float4 v = *reinterpret_cast<const float4*>(&x[k + e][x_column + lane % 2 * 4]);
        sum = {fmaf(factors[e], v.x, sum.x), fmaf(factors[e], v.y, sum.y), fmaf(factors[e], v.z, sum.z),
               fmaf(factors[e], v.w, sum.w)};
      }
    }
  }
  // Blocks (a, b) of the inverse for a > b, 8 columns: X_ab = -D_a (sum over b <= c < a of A_ac X_cb).
  __device__ void invert_column(int b, int half) {
    const int column = b * kSolve + half * 8;
#pragma unroll 1
    for (int a = b + 1; a < kChunk / kSolve; ++a) {
      float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 1
      for (int c = b; c < a; ++c) multiply_block(sum, &sh.a[a * kSolve], c * kSolve, &sh.inverse[c * kSolve], column);
      float4* place = reinterpret_cast<float4*>(&sh.inverse[a * kSolve + lane / 2][column + lane % 2 * 4]);
      *place = sum;
      __syncwarp();
      float4 x = {0.0f, 0.0f, 0.0f, 0.0f};
      multiply_block(x, &sh.inverse[a * kSolve], a * kSolve, &sh.inverse[a * kSolve], column);
      __syncwarp();
      *place = {-x.x, -x.y, -x.z, -x.w};
      __syncwarp();
    }
  }

  __device__ void store(ChunkData& out) const {
    for (int i = thread; i < kChunk * 8; i += kThreads) {
      const int t = i / 8, piece = i % 8;
      if (!lower_piece(t, piece)) continue;
      uint32_t pairs[4];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int j = piece * 8 + 4 * e;
        const float4 x = *reinterpret_cast<const float4*>(&sh.inverse[t][j]);
        const float4 f = *reinterpret_cast<const float4*>(&sh.beta[j]);
        pairs[2 * e] = pack_bf16(j < t ? x.x * f.x : 0.0f, j + 1 < t ? x.y * f.y : 0.0f);
        pairs[2 * e + 1] = pack_bf16(j + 2 < t ? x.z * f.z : 0.0f, j + 3 < t ? x.w * f.w : 0.0f);
      }
      *reinterpret_cast<uint4*>(&out.solve[t][piece * 8]) = {pairs[0], pairs[1], pairs[2], pairs[3]};
      *reinterpret_cast<uint4*>(&out.weights[t][piece * 8]) =
          *reinterpret_cast<const uint4*>(&sh.weights[t][piece * 8]);
    }
  }

  __device__ void value_head(int head, ChunkData& out) {
    decays(head, out);
    __syncthreads();
    triangles();
    __syncthreads();
    invert_diagonal();
    __syncthreads();
    // Columns of blocks are independent; these shares are 9, 9, 7 and 7 products of half blocks.
    if (warp < 2) {
      invert_column(0, warp);
    } else {
      invert_column(1, warp - 2);
      invert_column(2, warp - 2);
    }
    __syncthreads();
    store(out);
    __syncthreads();
  }
};

__global__ void __launch_bounds__(kThreads, 4) products_kernel(const __grid_constant__ GdnChunkedParams p) {
  extern __shared__ float4 memory[];
  begin_kernel(p);
  const SegmentTile tile = find_tile(p.segments, static_cast<int>(blockIdx.x), kChunk);
  if (tile.index < 0) return;
  if (tile.segment.position % kChunk != 0) __trap();
  const int key_head = static_cast<int>(blockIdx.y), group = p.shape.Hv / p.shape.Hk;
  Chunk chunk{p, *reinterpret_cast<Shared*>(memory), tile.segment.row + tile.first,
              min(kChunk, tile.segment.count - tile.first), key_head};
  chunk.load();
  __syncthreads();
  chunk.multiply();
  __syncthreads();
  ChunkData* out = static_cast<ChunkData*>(p.workspace) + static_cast<int64_t>(blockIdx.x) * p.shape.Hv;
#pragma unroll 1
  for (int m = 0; m < group; ++m) {
    const int head = p.shape.grouped ? key_head * group + m : key_head + m * p.shape.Hk;
    chunk.value_head(head, out[head]);
  }
}

}  // namespace

Status launch_chunk_products(cudaStream_t stream, const GdnChunkedParams& p, int64_t chunks) {
  return launch(stream, "gdn_chunked: products", products_kernel,
                dim3(static_cast<unsigned>(chunks), static_cast<unsigned>(p.shape.Hk)), kThreads, sizeof(Shared), p);
}

}  // namespace quire::cuda
