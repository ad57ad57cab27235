// gelu on a GPU: a thread has one vector of eight elements, or one element where rows are not aligned.
#include "ops/gelu/cuda/kernels.h"

#include <array>

#include "core/cuda/dependent_launch.cuh"
#include "core/cuda/launch.h"
#include "ops/cuda/arguments.h"
#include "ops/cuda/context.h"
#include "ops/cuda/vectors.cuh"
#include "ops/gelu/erfc.h"
#include "ops/gemm/activation.h"

namespace quire::cuda {
namespace {

using bf16_t = __nv_bfloat16;
constexpr int kThreads = 256;
constexpr float kLog2e = 1.4426950408889634f;

struct GeluParams {
  const void* x;
  void* y;
  int64_t x_stride, y_stride;  // elements
  uint32_t vectors, of_row;    // all, and those of a row
};

// 2^x with a relative error of 2^-22; exactly 0 and infinity far out.
__device__ __forceinline__ float power_of_two(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

__device__ __forceinline__ float gelu_tanh(float x) {
  // (1 + tanh(u)) / 2 = 1 / (1 + e^-2u)
  constexpr float kLinear = static_cast<float>(-2.0 * glu::kGeluRoot) * kLog2e;
  constexpr float kCubic = static_cast<float>(-2.0 * glu::kGeluRoot * glu::kGeluCube) * kLog2e;
  return __fdividef(x, 1.0f + power_of_two(x * fmaf(x * x, kCubic, kLinear)));
}

__device__ __forceinline__ float gelu_erf(float x) {
  // Half of what lies beyond |x|; Phi(x) is that, or what is left of 1.
  const float z = fabsf(x) * 0.70710678118654752f;
  const float t = __fdividef(1.0f, fmaf(0.5f, z, 1.0f));
  constexpr auto kP = std::to_array(gelu_detail::kErfcPolynomial);  // which device code does not see itself
  float p = kP[0];
#pragma unroll
  for (size_t i = 1; i < kP.size(); ++i) p = fmaf(p, t, kP[i]);
  const float tail = 0.5f * t * power_of_two(fmaf(-z, z, p) * kLog2e);
  return x * (x > 0.0f ? 1.0f - tail : tail);
}

template <class X, class Y, int N, bool kErf>
__global__ void __launch_bounds__(kThreads) gelu_kernel(const __grid_constant__ GeluParams p) {
  begin_kernel(p);
  const uint32_t at = blockIdx.x * kThreads + threadIdx.x;
  if (at >= p.vectors) return;
  const uint32_t row = at / p.of_row, column = (at - row * p.of_row) * N;
  Vec<N> v = load<N>(static_cast<const X*>(p.x) + row * p.x_stride + column);
#pragma unroll
  for (float& x : v.x) x = kErf ? gelu_erf(x) : gelu_tanh(x);
  store<N>(static_cast<Y*>(p.y) + row * p.y_stride + column, v);
}

template <class X, class Y, int N>
Status launch_vectors(cudaStream_t stream, const GeluParams& p, GeluForm form) {
  return launch(stream, "gelu", form == GeluForm::kErf ? gelu_kernel<X, Y, N, true> : gelu_kernel<X, Y, N, false>,
                dim3((p.vectors + kThreads - 1) / kThreads), kThreads, 0, p);
}

template <class X, class Y>
Status launch_typed(cudaStream_t stream, const GeluArgs& a) {
  const bool eights = a.x.dim(1) % 8 == 0 && aligned_elements(a.x, 8) && aligned_elements(a.y, 8);
  const int64_t of_row = eights ? a.x.dim(1) / 8 : a.x.dim(1);
  const GeluParams p{.x = a.x.data,
                     .y = a.y.data,
                     .x_stride = a.x.stride[0],
                     .y_stride = a.y.stride[0],
                     .vectors = static_cast<uint32_t>(a.x.dim(0) * of_row),
                     .of_row = static_cast<uint32_t>(of_row)};
  return eights ? launch_vectors<X, Y, 8>(stream, p, a.form) : launch_vectors<X, Y, 1>(stream, p, a.form);
}

}  // namespace

bool gelu_fits(const Machine&, const GeluArgs& a) {
  return a.x.elems() <= INT32_MAX;
}

void gelu(const OpContext& ctx, const GeluArgs& a) {
  Context& c = context_of(ctx);
  if (c.dry || a.x.elems() == 0) return;
  const bool x_bf16 = a.x.dtype == DType::kBF16, y_bf16 = a.y.dtype == DType::kBF16;
  const auto run = x_bf16 ? (y_bf16 ? launch_typed<bf16_t, bf16_t> : launch_typed<bf16_t, float>)
                          : (y_bf16 ? launch_typed<float, bf16_t> : launch_typed<float, float>);
  c.keep(run(c.stream, a));
}

}  // namespace quire::cuda
