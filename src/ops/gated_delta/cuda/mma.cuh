// Warp-wide matrix products of bf16 with float32 sums, and how their operands reach registers.
//
// D [16, 8] += A [16, 16] B [16, 8], lane = 4 i + j: A holds rows i, i + 8, column pairs 2j and 2j + 8; B
// holds column i, row pairs 2j and 2j + 8; D holds rows i, i + 8, column pair 2j. So two neighbouring D are
// an A once rounded.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace quire::cuda {

__device__ __forceinline__ void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four 8 x 8 matrices of 16-bit elements; lane l names row l % 8 of matrix l / 8. Lane 4 i + j gets row i,
// column pair 2j.
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared)
               : "memory");
}
// The same transposed: lane 4 i + j gets rows 2j and 2j + 1 of column i.
__device__ __forceinline__ void load_transposed(uint32_t (&r)[4], uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared)
               : "memory");
}
// Transposes one 8 x 8 matrix across the warp.
__device__ __forceinline__ uint32_t transpose_matrix(uint32_t x) {
  uint32_t y;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}
__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

}  // namespace quire::cuda
