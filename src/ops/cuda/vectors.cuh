// Rows of float32 or bf16 as vectors of float32, for kernels that memory bounds.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "ops/gated_delta/cuda/device.cuh"

namespace quire::cuda {

// N elements of either type as float32, in accesses of up to 16 bytes.
template <int N>
struct Vec {
  float x[N];
};

template <int N>
__device__ __forceinline__ Vec<N> load(const float* p) {
  Vec<N> v;
  if constexpr (N == 1) {
    v.x[0] = *p;
  } else {
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      const float4 f = *reinterpret_cast<const float4*>(p + i);
      v.x[i] = f.x, v.x[i + 1] = f.y, v.x[i + 2] = f.z, v.x[i + 3] = f.w;
    }
  }
  return v;
}
template <int N>
__device__ __forceinline__ Vec<N> load(const __nv_bfloat16* p) {
  Vec<N> v;
  if constexpr (N == 1) {
    v.x[0] = __bfloat162float(*p);
  } else {
    uint32_t pairs[N / 2];
    if constexpr (N == 4)
      *reinterpret_cast<uint2*>(pairs) = *reinterpret_cast<const uint2*>(p);
    else
      *reinterpret_cast<uint4*>(pairs) = *reinterpret_cast<const uint4*>(p);
#pragma unroll
    for (int i = 0; i < N / 2; ++i) v.x[2 * i] = low_bf16(pairs[i]), v.x[2 * i + 1] = high_bf16(pairs[i]);
  }
  return v;
}
template <int N>
__device__ __forceinline__ void store(float* p, const Vec<N>& v) {
  if constexpr (N == 1) {
    *p = v.x[0];
  } else {
#pragma unroll
    for (int i = 0; i < N; i += 4)
      *reinterpret_cast<float4*>(p + i) = make_float4(v.x[i], v.x[i + 1], v.x[i + 2], v.x[i + 3]);
  }
}
template <int N>
__device__ __forceinline__ void store(__nv_bfloat16* p, const Vec<N>& v) {
  if constexpr (N == 1) {
    *p = __float2bfloat16_rn(v.x[0]);
  } else {
    uint32_t pairs[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; ++i) pairs[i] = pack_bf16(v.x[2 * i], v.x[2 * i + 1]);
    if constexpr (N == 4)
      *reinterpret_cast<uint2*>(p) = *reinterpret_cast<const uint2*>(pairs);
    else
      *reinterpret_cast<uint4*>(p) = *reinterpret_cast<const uint4*>(pairs);
  }
}

}  // namespace quire::cuda
