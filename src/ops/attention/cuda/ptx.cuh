// The instructions that attention kernels are made of, besides products.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "core/cuda/tensor_core.cuh"

namespace quire::cuda {

// Two floats as a pair of bf16, `low` in the lower half; rounded to nearest even.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
__device__ __forceinline__ float low_bf16(uint32_t pair) {
  return __uint_as_float(pair << 16);
}
__device__ __forceinline__ float high_bf16(uint32_t pair) {
  return __uint_as_float(pair & 0xffff0000u);
}

// 2^x with a relative error of 2^-22; 2^0 is exactly 1, 2^-infinity exactly 0.
__device__ __forceinline__ float exp2_approx(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
__device__ __forceinline__ float sigmoid(float x) {
  return __fdividef(1.0f, 1.0f + exp2_approx(-x * 1.4426950408889634f));
}

// Copies 16 bytes, or writes zeros when not `valid` (nothing is read then).
__device__ __forceinline__ void copy_async16(uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
}
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace quire::cuda
