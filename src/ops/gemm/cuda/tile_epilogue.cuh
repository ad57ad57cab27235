// How the 64 x N sums of four warps become rows of y: through shared memory, which exchanges rows and columns, so that
// a row's 64 (or, paired, 32) neighbouring outputs are written together.
#pragma once

#include "ops/gemm/cuda/decode.cuh"
#include "ops/gemm/cuda/problem.cuh"
#include "ops/gemm/cuda/tile_walk.cuh"

namespace quire::gemm {

inline constexpr int kStagingBytes = 2 * 4096;  // of four warps: two buffers, used in turn

// Four 8 x 8 matrices of 16-bit elements as they lie across a warp; lane l says where column l % 8 of matrix l / 8
// goes.
__device__ inline void store_matrices_transposed(uint32_t at, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
  if constexpr (cuda::kForSm90) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                 :
                 : "r"(at), "r"(r0), "r"(r1), "r"(r2), "r"(r3)
                 : "memory");
  } else {
    const int lane = threadIdx.x % 32;
    const uint32_t r[4] = {r0, r1, r2, r3};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t to = __shfl_sync(~0u, at, 8 * i + lane / 4) + lane % 4 * 4;
      asm volatile("st.shared.b32 [%0], %1;" : : "r"(to), "r"(cuda::transpose_matrix(r[i])) : "memory");
    }
  }
}
__device__ inline uint32_t pack_bf16(float lo, float hi) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(lo, hi);
  return *reinterpret_cast<const uint32_t*>(&v);
}

// The sums of a K slice as four warps hold them, of a group's first eight rows of x on, which `at` is the place of
// (ApartSums); only those of `count` rows.
template <int N>
__device__ __forceinline__ void store_apart(float4* at, int32_t count, const float (&sum)[N / 2]) {
  at += threadIdx.x % 128;
#pragma unroll
  for (int i = 0; i < N / 8; ++i)
    if (8 * i < count) at[i * 128] = make_float4(sum[4 * i], sum[4 * i + 1], sum[4 * i + 2], sum[4 * i + 3]);
}

struct TileOutput {
  const Problem& p;
  const Part& part;
  const RowBlock& rows;
  int32_t row_tile;        // this warp's
  int32_t first_row_tile;  // of the four warps
  int lane;
  uint8_t* staging;
  int group;  // of four warps: its named barrier

  // Orders the writes to a buffer before the reads from it. Two buffers in turn: whoever passes has read the one
  // before.
  __device__ void meet() const { asm volatile("bar.sync %0, 128;" : : "r"(2 + group) : "memory"); }

  // sum: as Wgmma<N> leaves it, and mma.m16n8k16 for every eight rows of x.
  template <int N>
  __device__ __forceinline__ void store(const float (&sum)[N / 2], float unit) const {
    if (p.paired) return store<N, true, 0>(sum, unit);
    store<N, false, 0>(sum, unit);
  }
  // kPaired: p.paired, for kernels of the one or the other. kAhead: of store_f32, as far as registers are free.
  template <int N, bool kPaired, int kAhead>
  __device__ __forceinline__ void store(const float (&sum)[N / 2], float unit) const {
    const LaneRows r = lane_rows(p, part, rows.expert, row_tile, lane, unit);
    if constexpr (!kPaired) {
      if (kAhead > 0 && part.out == Out::kAddF32) return store_f32<N, kAhead>(sum, r);
      if (part.out != Out::kBf16) return store_f32<N, 0>(sum, r);
    }
    // Which rows of y: all are asked for at once.
    int32_t to[N / 32];
#pragma unroll
    for (int i = 0; i < N / 32; ++i) {
      const int token = 32 * i + lane;
      to[i] = token < rows.count ? y_row(p, rows.begin + token) : 0;
    }
    if constexpr (kPaired) {
      store_paired<N>(sum, r, to);
    } else {
      store_bf16<N>(sum, r, to);
    }
  }

 private:
  __device__ int thread() const {
    return threadIdx.x % 128;
  }
  __device__ uint8_t* buffer(int turn) const {
    return staging + (turn & 1) * (kStagingBytes / 2);
  }
  // Output of the four warps' first row.
  __device__ int32_t first_output() const {
    return first_row_tile * (p.paired ? 8 : 16);
  }

  // Eight outputs from n on, of the row `token` of this block, which is row `to` of y.
  __device__ void write_bf16(int token, int32_t to, int32_t n, const uint4& v) const {
    if (token >= rows.count || n >= part.rows) return;
    __nv_bfloat16* y = static_cast<__nv_bfloat16*>(part.y) + static_cast<int64_t>(to) * part.y_stride + n;
    if (n + 8 <= part.rows && (reinterpret_cast<uintptr_t>(y) & 15u) == 0) {
      *reinterpret_cast<uint4*>(y) = v;
      return;
    }
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (n + i < part.rows) y[i] = __ushort_as_bfloat16(static_cast<unsigned short>(words[i / 2] >> (16 * (i % 2))));
  }

  // 32 rows of x at a time: [row] 128 bytes of 64 outputs, pieces of 16 bytes exchanged by the row's number.
  template <int N>
  __device__ __forceinline__ void store_bf16(const float (&sum)[N / 2], const LaneRows& r,
                                             const int32_t (&rows_of_y)[N / 32]) const {
#pragma unroll
    for (int turn = 0; turn < N / 32; ++turn) {
      uint8_t* to = buffer(turn);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t v[4];
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const int i = 4 * (4 * turn + 2 * half + k);
          v[2 * k] = pack_bf16(r.value(sum[i]), r.value(sum[i + 1]));
          v[2 * k + 1] = pack_bf16(r.value8(sum[i + 2]), r.value8(sum[i + 3]));
        }
        const int token = 16 * half + lane / 16 * 8 + lane % 8;
        const int piece = 2 * (threadIdx.x / 32 % 4) + lane / 8 % 2;
        store_matrices_transposed(shared_address(to + token * 128 + (piece ^ (token & 7)) * 16), v[0], v[1], v[2],
                                  v[3]);
      }
      meet();
#pragma unroll
      for (int i = thread(); i < 32 * 8; i += 128) {
        const int token = i / 8, piece = i % 8;
        write_bf16(32 * turn + token, __shfl_sync(~0u, rows_of_y[turn], token), first_output() + piece * 8,
                   *reinterpret_cast<const uint4*>(to + token * 128 + (piece ^ (token & 7)) * 16));
      }
    }
  }

  // The same with 32 outputs, 64 bytes, a row.
  template <int N>
  __device__ __forceinline__ void store_paired(const float (&sum)[N / 2], const LaneRows& r,
                                               const int32_t (&rows_of_y)[N / 32]) const {
#pragma unroll
    for (int turn = 0; turn < N / 32; ++turn) {
      uint8_t* to = buffer(turn);
      float gate[8], up[8];
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const int i = 4 * (4 * turn + k / 2) + k % 2;
        gate[k] = r.value(sum[i]);
        up[k] = r.value8(sum[i + 2]);
      }
      gate_all(p.activation, gate, up);
      const int mine = lane, own = threadIdx.x / 32 % 4;
      store_matrices_transposed(shared_address(to + mine * 64 + (own ^ (mine / 2 & 3)) * 16),
                                pack_bf16(gate[0], gate[1]), pack_bf16(gate[2], gate[3]), pack_bf16(gate[4], gate[5]),
                                pack_bf16(gate[6], gate[7]));
      meet();
      const int token = thread() / 4, piece = thread() % 4;
      write_bf16(32 * turn + token, __shfl_sync(~0u, rows_of_y[turn], token), first_output() + piece * 8,
                 *reinterpret_cast<const uint4*>(to + token * 64 + (piece ^ (token / 2 & 3)) * 16));
    }
  }

  // 16 rows of x at a time: [row] 64 floats, pieces of 32 bytes exchanged by the row's number. kAhead: so many turns
  // before it is added to, y is asked for, which may have to come from memory; 0: with the others of its turn.
  template <int N, int kAhead>
  __device__ __forceinline__ void store_f32(const float (&sum)[N / 2], const LaneRows& r) const {
    constexpr int kTurns = N / 16, kKept = kAhead < kTurns ? kAhead : kTurns, kSlots = kKept > 0 ? kKept : 1;
    const int n = threadIdx.x / 32 % 4 * 16 + lane / 4;
    float4 old[kSlots][2] = {};
#pragma unroll
    for (int turn = 0; turn < kKept; ++turn) load_old(turn, old[turn]);
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      auto* to = reinterpret_cast<float*>(buffer(turn));
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int i = 4 * (2 * turn + k);
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int token = 8 * k + lane % 4 * 2 + c, swizzle = lane % 4 * 8;  // token / 2 % 4
          to[token * 64 + (n ^ swizzle)] = r.value(sum[i + c]);
          to[token * 64 + ((n + 8) ^ swizzle)] = r.value8(sum[i + 2 + c]);
        }
      }
      meet();
#pragma unroll
      for (int i = thread(); i < 16 * 16; i += 128) {
        const int token = i / 16, piece = i % 16;
        write_f32<(kKept > 0)>(16 * turn + token, first_output() + piece * 4,
                               *reinterpret_cast<const float4*>(to + token * 64 + ((piece * 4) ^ (token / 2 % 4 * 8))),
                               old[turn % kSlots][i / 128]);
      }
      if constexpr (kKept > 0) {
        if (turn + kKept < kTurns) load_old(turn + kKept, old[turn % kSlots]);
      }
    }
  }

  // Four outputs from n on of the row `token` of this block, in y; whether all of them are there, and aligned.
  __device__ float* place_f32(int token, int32_t n) const {
    return static_cast<float*>(part.y) + static_cast<int64_t>(y_row(p, rows.begin + token)) * part.y_stride + n;
  }
  __device__ bool is_four(const float* y, int32_t n) const {
    return n + 4 <= part.rows && (reinterpret_cast<uintptr_t>(y) & 15u) == 0;
  }
  // Of what write_f32 will write in a turn, fours.
  __device__ void load_old(int turn, float4 (&old)[2]) const {
#pragma unroll
    for (int i = thread(); i < 16 * 16; i += 128) {
      const int token = 16 * turn + i / 16;
      const int32_t n = first_output() + i % 16 * 4;
      if (token >= rows.count || n >= part.rows) continue;
      const float* y = place_f32(token, n);
      if (is_four(y, n)) old[i / 128] = *reinterpret_cast<const float4*>(y);
    }
  }
  // kLoaded: `old` is what a four is added to.
  template <bool kLoaded>
  __device__ void write_f32(int token, int32_t n, float4 v, const float4& old) const {
    if (token >= rows.count || n >= part.rows) return;
    float* y = place_f32(token, n);
    const bool add = kLoaded || part.out == Out::kAddF32;
    if (is_four(y, n)) {
      if (add) {
        const float4 to = kLoaded ? old : *reinterpret_cast<const float4*>(y);
        v = make_float4(__fadd_rn(to.x, v.x), __fadd_rn(to.y, v.y), __fadd_rn(to.z, v.z), __fadd_rn(to.w, v.w));
      }
      *reinterpret_cast<float4*>(y) = v;
      return;
    }
    const float values[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (n + i < part.rows) y[i] = add ? __fadd_rn(y[i], values[i]) : values[i];
  }
};

}  // namespace quire::gemm
