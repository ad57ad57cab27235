// The norms of ops/norm/norm.h on the GPU.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/result.h"

namespace quire::cuda {

// x <- x + add;  h = weight * x / sqrt(mean(x^2) + eps), per row.
//   x [T, D] f32, written only when add is given;  add [T, D], bf16 or f32, optional;  weight [D] f32;  h [T,
//     D]
// Strides are elements between rows. Where D is a multiple of 4, rows of 4-byte elements are aligned to 16
// bytes and those of bf16 to 8. The sum of squares runs over a tree that depends on D only. Bound: memory, 4
// to 14 bytes per element.
struct AddRmsNormParams {
  int64_t rows = 0, D = 0;
  float* x = nullptr;
  int64_t x_stride = 0;
  const void* add = nullptr;  // null: nothing to add
  bool add_bf16 = true;
  int64_t add_stride = 0;
  const float* weight = nullptr;
  float eps = 1e-6f;
  void* h = nullptr;
  bool h_bf16 = true;
  int64_t h_stride = 0;
};
// Enqueues one kernel. Looks at no limit: kernels.h does.
Status launch_add_rms_norm(cudaStream_t stream, const AddRmsNormParams& params);

// y = weight * o / sqrt(mean(o^2) + eps) * SiLU(z), per head of 128, all of one type.
//   o, z, y [T, Hv * 128] bf16 or f32, rows aligned to 16 bytes, y may alias o or z;  weight [128] f32,
//     shared by heads
struct GatedRmsNormParams {
  int64_t rows = 0;
  int32_t Hv = 0;
  bool bf16 = true;
  const void* o = nullptr;
  int64_t o_stride = 0;
  const void* z = nullptr;
  int64_t z_stride = 0;
  const float* weight = nullptr;
  float eps = 1e-6f;
  void* y = nullptr;
  int64_t y_stride = 0;
};
// Enqueues one kernel.
Status launch_gated_rms_norm(cudaStream_t stream, const GatedRmsNormParams& params);

}  // namespace quire::cuda
