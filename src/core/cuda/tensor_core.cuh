// Matrix products of bf16 with float32 sums, by a warp (mma.sync) and by a warpgroup (wgmma), and how their operands
// reach registers.
//
// mma: D [16, 8] += A [16, 16] B [16, 8], lane = 4 i + j: A holds rows i, i + 8, column pairs 2j and 2j + 8; B holds
// column i, row pairs 2j and 2j + 8; D holds rows i, i + 8, column pair 2j. So two neighbouring D are an A once
// rounded.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace quire::cuda {

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Four 8 x 8 matrices of 16-bit elements; lane l names row l % 8 of matrix l / 8. Lane 4 i + j gets row i, column pair
// 2j.
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
// The same transposed: lane 4 i + j gets rows 2j and 2j + 1 of column i.
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
// The transpose of an 8 x 8 matrix of 16-bit elements that lies across the warp.
__device__ __forceinline__ uint32_t transpose_matrix(uint32_t x) {
  uint32_t r;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(x));
  return r;
}

__device__ __forceinline__ void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ---- Warpgroups, sm_90a. Accumulators and operands in registers are ordered before products by the fence.

__device__ __forceinline__ void warpgroup_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void warpgroup_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void warpgroup_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving reads and writes of accumulators across. (By index: over a range, ptxas makes the
// products of attention wait for each other.)
template <int kCount>
__device__ __forceinline__ void pin(float (&c)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(c[i])::"memory");
}

}  // namespace quire::cuda
