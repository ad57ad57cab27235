// The second kernel of a product whose segments were multiplied apart.
#include "ops/gemm/cuda/launch.h"
#include "ops/gemm/cuda/problem.cuh"

namespace quire::gemm {
namespace {

constexpr int kThreads = 128;

struct Sums {
  const float* of[kMaxParts];
};

// One row of y, kEach columns a thread.
template <int kEach>
__global__ void __launch_bounds__(kThreads)
    add_segments(const __grid_constant__ Problem p, const __grid_constant__ Sums sums, float unit) {
  cuda::begin_kernel(p, sums);
  const KernelPart& part = p.part[blockIdx.z];
  const int32_t n = (static_cast<int32_t>(blockIdx.x) * kThreads + static_cast<int32_t>(threadIdx.x)) * kEach;
  const int64_t row = blockIdx.y, step = static_cast<int64_t>(p.rows) * part.rows;
  if (n >= part.rows) return;
  const float* from = sums.of[blockIdx.z] + row * part.rows + n;
  const auto load = [](const float* at, float(&v)[kEach]) {
    if constexpr (kEach == 4)
      *reinterpret_cast<float4*>(v) = *reinterpret_cast<const float4*>(at);
    else
      v[0] = *at;
  };
  float sum[kEach];
  load(from, sum);
#pragma unroll 4
  for (int32_t s = 1; s < p.segments; ++s) {
    float v[kEach];
    load(from + s * step, v);
#pragma unroll
    for (int i = 0; i < kEach; ++i) sum[i] = __fadd_rn(sum[i], v[i]);
  }
  const float scale = __fmul_rn(unit, part.scale == nullptr ? 1.0f : part.scale[0]);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const float v = __fadd_rn(__fmul_rn(sum[i], scale), part.bias == nullptr ? 0.0f : part.bias[n + i]);
    const int64_t at = row * part.y_stride + n + i;
    if (part.out == Out::kBf16) {
      static_cast<__nv_bfloat16*>(part.y)[at] = __float2bfloat16_rn(v);
    } else {
      float* y = static_cast<float*>(part.y) + at;
      *y = part.out == Out::kAddF32 ? __fadd_rn(*y, v) : v;
    }
  }
}

}  // namespace

Status launch_add_segments(cudaStream_t stream, const Problem& p, const float* const* sums, float unit) {
  Sums s{};
  int32_t widest = 0;
  bool fours = true;
  for (int i = 0; i < p.part_count; ++i) {
    s.of[i] = sums[i];
    widest = std::max(widest, p.part[i].rows);
    fours = fours && p.part[i].rows % 4 == 0 && reinterpret_cast<uintptr_t>(sums[i]) % 16 == 0;
  }
  const int32_t each = fours ? 4 : 1;
  const dim3 grid(static_cast<unsigned>((widest + each * kThreads - 1) / (each * kThreads)),
                  static_cast<unsigned>(p.rows), static_cast<unsigned>(p.part_count));
  return cuda::launch(stream, "a product: adding segments", fours ? add_segments<4> : add_segments<1>, grid,
                      kThreads, 0, p, s, unit);
}

}  // namespace quire::gemm
