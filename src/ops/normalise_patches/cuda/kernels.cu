// normalise_patches on a GPU: a thread has four elements of a row of y, or one where runs or rows are not aligned.
#include "ops/normalise_patches/cuda/kernels.h"

#include "core/cuda/dependent_launch.cuh"
#include "core/cuda/launch.h"
#include "ops/cuda/arguments.h"
#include "ops/cuda/context.h"
#include "ops/cuda/vectors.cuh"

namespace quire::cuda {
namespace {

constexpr int kThreads = 256;

struct NormalisePatchesParams {
  const uint8_t* x;
  const float* table;
  void* y;
  int64_t x_stride, y_stride;    // elements
  uint32_t vectors, of_row;      // all of y, and those of a row
  uint32_t run, frames_of_runs;  // elements of a run, and of all frames of one
  uint32_t bytes;                // of a row of x
};

template <class T, int N>
__global__ void __launch_bounds__(kThreads) normalise_patches_kernel(const __grid_constant__ NormalisePatchesParams p) {
  begin_kernel(p);
  const uint32_t at = blockIdx.x * kThreads + threadIdx.x;
  if (at >= p.vectors) return;
  const uint32_t row = at / p.of_row, column = (at - row * p.of_row) * N;
  const uint32_t run = column / p.frames_of_runs, from = run * p.run + column % p.run;
  Vec<N> v = {};
  if (from < p.bytes) {
    const uint8_t* const x = p.x + row * p.x_stride + from;
    uint8_t bytes[N];
    if constexpr (N == 4)
      *reinterpret_cast<uchar4*>(bytes) = *reinterpret_cast<const uchar4*>(x);
    else
      bytes[0] = *x;
    const float* const numbers = p.table + run % 3 * 256;
#pragma unroll
    for (int e = 0; e < N; ++e) v.x[e] = numbers[bytes[e]];
  }
  store<N>(static_cast<T*>(p.y) + row * p.y_stride + column, v);
}

template <class T>
auto kernel_for(bool fours) {
  return fours ? normalise_patches_kernel<T, 4> : normalise_patches_kernel<T, 1>;
}

}  // namespace

bool normalise_patches_fits(const Machine&, const NormalisePatchesArgs& a) {
  return a.y.elems() <= INT32_MAX;
}

void normalise_patches(const OpContext& ctx, const NormalisePatchesArgs& a) {
  Context& c = context_of(ctx);
  if (c.dry || a.y.elems() == 0) return;
  const bool fours = a.run % 4 == 0 && a.y.dim(1) % 4 == 0 && aligned_elements(a.x, 4) && aligned_elements(a.y, 4);
  const int64_t of_row = fours ? a.y.dim(1) / 4 : a.y.dim(1);
  const NormalisePatchesParams p{.x = data<uint8_t>(a.x),
                                 .table = floats(a.table),
                                 .y = a.y.data,
                                 .x_stride = a.x.stride[0],
                                 .y_stride = a.y.stride[0],
                                 .vectors = static_cast<uint32_t>(a.y.dim(0) * of_row),
                                 .of_row = static_cast<uint32_t>(of_row),
                                 .run = static_cast<uint32_t>(a.run),
                                 .frames_of_runs = static_cast<uint32_t>(a.run * a.frames),
                                 .bytes = static_cast<uint32_t>(a.x.dim(1))};
  const auto kernel = a.y.dtype == DType::kF32 ? kernel_for<float>(fours) : kernel_for<__nv_bfloat16>(fours);
  c.keep(launch(c.stream, "normalise_patches", kernel, dim3((p.vectors + kThreads - 1) / kThreads), kThreads, 0, p));
}

}  // namespace quire::cuda
