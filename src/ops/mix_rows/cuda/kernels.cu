// mix_rows on a GPU: a thread has four columns of a row, or one where rows are not aligned.
#include "ops/mix_rows/cuda/kernels.h"

#include "core/cuda/dependent_launch.cuh"
#include "core/cuda/launch.h"
#include "ops/cuda/arguments.h"
#include "ops/cuda/context.h"
#include "ops/cuda/vectors.cuh"

namespace quire::cuda {
namespace {

constexpr int kThreads = 256;

struct MixRowsParams {
  const int32_t* rows;
  const float *weights, *table;
  float* x;
  int64_t rows_stride, weights_stride, table_stride, x_stride;  // elements
  uint32_t vectors, of_row;                                     // all of x, and those of a row
  int32_t count;
  bool add_to_x;
};

// The order and the roundings of the operator's contract, whose bits are the same everywhere.
template <int N>
__global__ void __launch_bounds__(kThreads) mix_rows_kernel(const __grid_constant__ MixRowsParams p) {
  begin_kernel(p);
  const uint32_t at = blockIdx.x * kThreads + threadIdx.x;
  if (at >= p.vectors) return;
  const uint32_t t = at / p.of_row, column = (at - t * p.of_row) * N;
  const int32_t* const rows = p.rows + t * p.rows_stride;
  const float* const weights = p.weights + t * p.weights_stride;
  const float* const table = p.table + column;
  Vec<N> sum = load<N>(table + rows[0] * p.table_stride);
#pragma unroll
  for (float& s : sum.x) s = __fmul_rn(weights[0], s);
#pragma unroll 3
  for (int k = 1; k < p.count; ++k) {
    const Vec<N> from = load<N>(table + rows[k] * p.table_stride);
    const float weight = weights[k];
#pragma unroll
    for (int e = 0; e < N; ++e) sum.x[e] = __fmaf_rn(weight, from.x[e], sum.x[e]);
  }
  float* const x = p.x + t * p.x_stride + column;
  if (p.add_to_x) {
    const Vec<N> own = load<N>(x);
#pragma unroll
    for (int e = 0; e < N; ++e) sum.x[e] = __fadd_rn(own.x[e], sum.x[e]);
  }
  store<N>(x, sum);
}

}  // namespace

bool mix_rows_fits(const Machine&, const MixRowsArgs& a) {
  return a.x.elems() <= INT32_MAX;
}

void mix_rows(const OpContext& ctx, const MixRowsArgs& a) {
  Context& c = context_of(ctx);
  if (c.dry || a.x.elems() == 0) return;
  const bool fours = a.x.dim(1) % 4 == 0 && aligned_elements(a.x, 4) && aligned_elements(a.table, 4);
  const int64_t of_row = fours ? a.x.dim(1) / 4 : a.x.dim(1);
  const MixRowsParams p{.rows = data<int32_t>(a.rows),
                        .weights = floats(a.weights),
                        .table = floats(a.table),
                        .x = data<float>(a.x),
                        .rows_stride = a.rows.stride[0],
                        .weights_stride = a.weights.stride[0],
                        .table_stride = a.table.stride[0],
                        .x_stride = a.x.stride[0],
                        .vectors = static_cast<uint32_t>(a.x.dim(0) * of_row),
                        .of_row = static_cast<uint32_t>(of_row),
                        .count = narrow(a.rows.dim(1)),
                        .add_to_x = a.add_to_x};
  c.keep(launch(c.stream, "mix_rows", fours ? mix_rows_kernel<4> : mix_rows_kernel<1>,
                dim3((p.vectors + kThreads - 1) / kThreads), kThreads, 0, p));
}

}  // namespace quire::cuda
