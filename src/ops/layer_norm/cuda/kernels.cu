// layer_norm on a GPU: a row stays in the registers of a warp, or of a block where it is wide, and is read once.
#include "ops/layer_norm/cuda/kernels.h"

#include "core/cuda/dependent_launch.cuh"
#include "core/cuda/launch.h"
#include "ops/cuda/arguments.h"
#include "ops/cuda/context.h"
#include "ops/cuda/vectors.cuh"

namespace quire::cuda {
namespace {

using bf16_t = __nv_bfloat16;

// A thread's part of a row: so many vectors of four elements, a row's threads apart.
constexpr int kEach = 12;
constexpr int64_t columns_of(int threads) {
  return int64_t{threads} * kEach * 4;
}
// Threads of a row: they follow from its width alone, as its sums' order does.
constexpr int kFew = 32, kSome = 128, kMany = 512;
// A block has several rows of a warp each, or else one.
constexpr int block_threads(int row_threads) {
  return row_threads == kFew ? 256 : row_threads;
}

struct LayerNormParams {
  int64_t rows, width;
  float* x;
  const void* add;  // null: nothing is added
  const float *weight, *bias;
  void* h;
  int64_t x_stride, add_stride, h_stride;
  float eps;
};

// Elements `at` to `at + 3`, as far as the row has them; zeros beyond. `kAligned`: it has all or none.
template <bool kAligned, class T>
__device__ __forceinline__ Vec<4> load_four(const T* row, int64_t at, int64_t width) {
  Vec<4> v = {};
  if constexpr (kAligned) {
    if (at < width) v = load<4>(row + at);
  } else {
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (at + e < width) v.x[e] = load<1>(row + at + e).x[0];
  }
  return v;
}
template <bool kAligned, class T>
__device__ __forceinline__ void store_four(T* row, int64_t at, int64_t width, const Vec<4>& v) {
  if constexpr (kAligned) {
    if (at < width) store<4>(row + at, v);
  } else {
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (at + e < width) store<1>(row + at + e, Vec<1>{v.x[e]});
  }
}

// The sum over a row's threads, in each of them. `parts`: of this sum alone.
template <int kRowThreads>
__device__ __forceinline__ float row_sum(float x, float (&parts)[32]) {
  x = warp_sum(x);
  if constexpr (kRowThreads > 32) {
    const int lane = threadIdx.x % 32;
    if (lane == 0) parts[threadIdx.x / 32] = x;
    __syncthreads();
    x = warp_sum(lane < kRowThreads / 32 ? parts[lane] : 0.0f);
  }
  return x;
}

template <class Add, class H, int kRowThreads, bool kAligned>
__global__ void __launch_bounds__(block_threads(kRowThreads))
    layer_norm_kernel(const __grid_constant__ LayerNormParams p) {
  begin_kernel(p);
  constexpr int kRows = block_threads(kRowThreads) / kRowThreads;
  const int thread = static_cast<int>(threadIdx.x) % kRowThreads;
  const int64_t row = int64_t{blockIdx.x} * kRows + static_cast<int>(threadIdx.x) / kRowThreads;
  if (row >= p.rows) return;  // whole warps, and none of a block with one row
  float* const x = p.x + row * p.x_stride;
  const Add* const add = p.add == nullptr ? nullptr : static_cast<const Add*>(p.add) + row * p.add_stride;
  const auto place = [&](int i) { return int64_t{i * kRowThreads + thread} * 4; };
  __shared__ float sums[32], squares[32];

  Vec<4> v[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) v[i] = load_four<kAligned>(x, place(i), p.width);
  if (add != nullptr) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const Vec<4> more = load_four<kAligned>(add, place(i), p.width);
#pragma unroll
      for (int e = 0; e < 4; ++e) v[i].x[e] += more.x[e];
      store_four<kAligned>(x, place(i), p.width, v[i]);
    }
  }
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kEach; ++i) sum += (v[i].x[0] + v[i].x[1]) + (v[i].x[2] + v[i].x[3]);
  const auto width = static_cast<float>(p.width);
  const float mean = row_sum<kRowThreads>(sum, sums) / width;
  float square = 0.0f;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      v[i].x[e] = place(i) + e < p.width ? v[i].x[e] - mean : 0.0f;
      square = fmaf(v[i].x[e], v[i].x[e], square);
    }
  }
  const float scale = 1.0f / sqrtf(row_sum<kRowThreads>(square, squares) / width + p.eps);
  H* const h = static_cast<H*>(p.h) + row * p.h_stride;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const Vec<4> weight = load_four<kAligned>(p.weight, place(i), p.width);
    const Vec<4> bias = load_four<kAligned>(p.bias, place(i), p.width);
#pragma unroll
    for (int e = 0; e < 4; ++e) v[i].x[e] = fmaf(v[i].x[e] * scale, weight.x[e], bias.x[e]);
    store_four<kAligned>(h, place(i), p.width, v[i]);
  }
}

template <class Add, class H, int kRowThreads>
Status launch_rows(cudaStream_t stream, const LayerNormParams& p, bool aligned) {
  constexpr int kThreads = block_threads(kRowThreads), kRows = kThreads / kRowThreads;
  return launch(stream, "layer_norm",
                aligned ? layer_norm_kernel<Add, H, kRowThreads, true> : layer_norm_kernel<Add, H, kRowThreads, false>,
                dim3(static_cast<unsigned>((p.rows + kRows - 1) / kRows)), kThreads, 0, p);
}

template <class Add, class H>
Status launch_typed(cudaStream_t stream, const LayerNormParams& p, bool aligned) {
  if (p.width <= columns_of(kFew)) return launch_rows<Add, H, kFew>(stream, p, aligned);
  if (p.width <= columns_of(kSome)) return launch_rows<Add, H, kSome>(stream, p, aligned);
  return launch_rows<Add, H, kMany>(stream, p, aligned);
}

}  // namespace

bool layer_norm_fits(const Machine&, const LayerNormArgs& a) {
  return a.x.dim(1) >= 1 && a.x.dim(1) <= columns_of(kMany) && a.x.dim(0) <= INT32_MAX;
}

void layer_norm(const OpContext& ctx, const LayerNormArgs& a) {
  Context& c = context_of(ctx);
  if (c.dry || a.x.dim(0) == 0) return;
  const LayerNormParams p{.rows = a.x.dim(0),
                          .width = a.x.dim(1),
                          .x = data<float>(a.x),
                          .add = a.add.data,
                          .weight = floats(a.weight),
                          .bias = floats(a.bias),
                          .h = a.h.data,
                          .x_stride = a.x.stride[0],
                          .add_stride = a.add.empty() ? 0 : a.add.stride[0],
                          .h_stride = a.h.stride[0],
                          .eps = a.eps};
  // Weight and bias are vectors: their stride is 1.
  const auto begins_aligned = [](const Tensor& t) { return reinterpret_cast<uintptr_t>(t.data) % 16 == 0; };
  const bool aligned = p.width % 4 == 0 && aligned_elements(a.x, 4) && aligned_elements(a.add, 4) &&
                       aligned_elements(a.h, 4) && begins_aligned(a.weight) && begins_aligned(a.bias);
  const bool add_bf16 = !a.add.empty() && a.add.dtype == DType::kBF16, h_bf16 = a.h.dtype == DType::kBF16;
  const auto run = add_bf16 ? (h_bf16 ? launch_typed<bf16_t, bf16_t> : launch_typed<bf16_t, float>)
                            : (h_bf16 ? launch_typed<float, bf16_t> : launch_typed<float, float>);
  c.keep(run(c.stream, p, aligned));
}

}  // namespace quire::cuda
