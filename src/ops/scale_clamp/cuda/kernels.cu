// scale_clamp on a GPU: a thread has one vector of eight elements, or one element where rows are not aligned.
#include "ops/scale_clamp/cuda/kernels.h"

#include "core/cuda/dependent_launch.cuh"
#include "core/cuda/launch.h"
#include "ops/cuda/arguments.h"
#include "ops/cuda/context.h"
#include "ops/cuda/vectors.cuh"

namespace quire::cuda {
namespace {

using bf16_t = __nv_bfloat16;
constexpr int kThreads = 256;

struct ScaleClampParams {
  const void* x;
  void* y;
  const float *shift, *scale;  // of columns; both may be null
  float low, high;
  int64_t x_stride, y_stride;  // elements
  uint32_t vectors, of_row;    // all, and those of a row
};

// Operations are rounded one by one, as on a CPU. Comparisons leave a NaN what it is, which fmin and fmax do not.
template <class X, class Y, int N>
__global__ void __launch_bounds__(kThreads) scale_clamp_kernel(const __grid_constant__ ScaleClampParams p) {
  begin_kernel(p);
  const uint32_t at = blockIdx.x * kThreads + threadIdx.x;
  if (at >= p.vectors) return;
  const uint32_t row = at / p.of_row, column = (at - row * p.of_row) * N;
  Vec<N> v = load<N>(static_cast<const X*>(p.x) + row * p.x_stride + column);
  if (p.scale != nullptr) {
    const Vec<N> shift = load<N>(p.shift + column), scale = load<N>(p.scale + column);
#pragma unroll
    for (int e = 0; e < N; ++e) v.x[e] = __fmul_rn(__fsub_rn(v.x[e], shift.x[e]), scale.x[e]);
  }
#pragma unroll
  for (float& x : v.x) {
    x = x < p.low ? p.low : x;
    x = x > p.high ? p.high : x;
  }
  store<N>(static_cast<Y*>(p.y) + row * p.y_stride + column, v);
}

template <class X, class Y, int N>
Status launch_vectors(cudaStream_t stream, const ScaleClampParams& p) {
  return launch(stream, "scale_clamp", scale_clamp_kernel<X, Y, N>, dim3((p.vectors + kThreads - 1) / kThreads),
                kThreads, 0, p);
}

template <class X, class Y>
Status launch_typed(cudaStream_t stream, const ScaleClampArgs& a) {
  const bool scaled = !a.scale.empty();
  const auto aligned = [](const float* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  const float *const shift = scaled ? floats(a.shift) : nullptr, *const scale = scaled ? floats(a.scale) : nullptr;
  const bool eights =
      a.x.dim(1) % 8 == 0 && aligned_elements(a.x, 8) && aligned_elements(a.y, 8) && aligned(shift) && aligned(scale);
  const int64_t of_row = eights ? a.x.dim(1) / 8 : a.x.dim(1);
  const ScaleClampParams p{.x = a.x.data,
                           .y = a.y.data,
                           .shift = shift,
                           .scale = scale,
                           .low = a.low,
                           .high = a.high,
                           .x_stride = a.x.stride[0],
                           .y_stride = a.y.stride[0],
                           .vectors = static_cast<uint32_t>(a.x.dim(0) * of_row),
                           .of_row = static_cast<uint32_t>(of_row)};
  return eights ? launch_vectors<X, Y, 8>(stream, p) : launch_vectors<X, Y, 1>(stream, p);
}

}  // namespace

bool scale_clamp_fits(const Machine&, const ScaleClampArgs& a) {
  return a.x.elems() <= INT32_MAX;
}

void scale_clamp(const OpContext& ctx, const ScaleClampArgs& a) {
  Context& c = context_of(ctx);
  if (c.dry || a.x.elems() == 0) return;
  const bool x_bf16 = a.x.dtype == DType::kBF16, y_bf16 = a.y.dtype == DType::kBF16;
  const auto run = x_bf16 ? (y_bf16 ? launch_typed<bf16_t, bf16_t> : launch_typed<bf16_t, float>)
                          : (y_bf16 ? launch_typed<float, bf16_t> : launch_typed<float, float>);
  c.keep(run(c.stream, a));
}

}  // namespace quire::cuda
