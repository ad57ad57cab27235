#include "ops/norm/cuda/norm.h"

#include "core/cuda/dependent_launch.cuh"
#include "core/cuda/launch.h"
#include "ops/cuda/vectors.cuh"
#include "ops/gated_delta/cuda/device.cuh"

namespace quire::cuda {
namespace {

// One block per row, which stays in registers: kEach vectors of N per thread. Weights, if there are registers for them,
// come before what the kernel waits for.
template <class Add, class H, int N, int kEach>
__global__ void __launch_bounds__(1024) add_rms_norm_kernel(const __grid_constant__ AddRmsNormParams p) {
  constexpr bool kWeightsAhead = kEach <= 4;
  let_next_kernel_start();
  touch(p);
  Vec<N> weights[kWeightsAhead ? kEach : 1];
  if constexpr (kWeightsAhead) {
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (const int64_t at = (static_cast<int64_t>(i) * blockDim.x + threadIdx.x) * N; at < p.D)
        weights[i] = load<N>(p.weight + at);
  }
  wait_for_previous_kernels();
  const int64_t row = blockIdx.x;
  float* x = p.x + row * p.x_stride;
  const Add* add = p.add == nullptr ? nullptr : static_cast<const Add*>(p.add) + row * p.add_stride;
  Vec<N> v[kEach];
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int64_t at = (static_cast<int64_t>(i) * blockDim.x + threadIdx.x) * N;
    if (at >= p.D) break;
    v[i] = load<N>(x + at);
    if (add != nullptr) {
      const Vec<N> more = load<N>(add + at);
#pragma unroll
      for (int e = 0; e < N; ++e) v[i].x[e] += more.x[e];
      store<N>(x + at, v[i]);
    }
#pragma unroll
    for (int e = 0; e < N; ++e) sum = fmaf(v[i].x[e], v[i].x[e], sum);
  }
  __shared__ float parts[32];
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = warp_sum(threadIdx.x % 32 < blockDim.x / 32 ? parts[threadIdx.x % 32] : 0.0f);
  const float scale = 1.0f / sqrtf(sum / static_cast<float>(p.D) + p.eps);
  H* h = static_cast<H*>(p.h) + row * p.h_stride;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int64_t at = (static_cast<int64_t>(i) * blockDim.x + threadIdx.x) * N;
    if (at >= p.D) break;
    const Vec<N> w = kWeightsAhead ? weights[i] : load<N>(p.weight + at);
#pragma unroll
    for (int e = 0; e < N; ++e) v[i].x[e] = v[i].x[e] * scale * w.x[e];
    store<N>(h + at, v[i]);
  }
}

template <class Add, class H, int N>
Status launch_rows(cudaStream_t stream, const AddRmsNormParams& p) {
  const int64_t vectors = (p.D + N - 1) / N;
  const auto rows = dim3(static_cast<unsigned>(p.rows));
  // Threads and vectors per thread follow from D alone.
  const auto threads = [&](int each) { return static_cast<int>(((vectors + each - 1) / each + 31) / 32 * 32); };
  constexpr std::string_view kWhat = "add_rms_norm";
  if (vectors <= 512) return launch(stream, kWhat, add_rms_norm_kernel<Add, H, N, 1>, rows, threads(1), 0, p);
  if (vectors <= 2048) return launch(stream, kWhat, add_rms_norm_kernel<Add, H, N, 4>, rows, threads(4), 0, p);
  return launch(stream, kWhat, add_rms_norm_kernel<Add, H, N, 8>, rows, threads(8), 0, p);
}

template <class Add, class H>
Status launch_typed(cudaStream_t stream, const AddRmsNormParams& p) {
  return p.D % 4 == 0 ? launch_rows<Add, H, 4>(stream, p) : launch_rows<Add, H, 1>(stream, p);
}

// 16 lanes per head, 8 elements each.
template <class T>
__global__ void __launch_bounds__(256) gated_rms_norm_kernel(const __grid_constant__ GatedRmsNormParams p) {
  begin_kernel(p);
  const int64_t unit = (static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x) / 16, units = p.rows * p.Hv;
  const int64_t at = min(unit, units - 1);  // lanes without a head stay, for their neighbours' sums
  const int64_t row = at / p.Hv, column = at % p.Hv * 128 + threadIdx.x % 16 * 8;
  const Vec<8> o = load<8>(static_cast<const T*>(p.o) + row * p.o_stride + column);
  const Vec<8> z = load<8>(static_cast<const T*>(p.z) + row * p.z_stride + column);
  const Vec<8> w = load<8>(p.weight + column % 128);
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 8; ++i) sum = fmaf(o.x[i], o.x[i], sum);
  sum = warp_sum<16>(sum);
  const float scale = 1.0f / sqrtf(sum / 128.0f + p.eps);
  Vec<8> y;
#pragma unroll
  for (int i = 0; i < 8; ++i) y.x[i] = o.x[i] * scale * w.x[i] * silu(z.x[i]);
  if (unit < units) store<8>(static_cast<T*>(p.y) + row * p.y_stride + column, y);
}

}  // namespace

Status launch_add_rms_norm(cudaStream_t stream, const AddRmsNormParams& p) {
  if (p.rows <= 0) return {};
  using B = __nv_bfloat16;
  if (p.add_bf16) return p.h_bf16 ? launch_typed<B, B>(stream, p) : launch_typed<B, float>(stream, p);
  return p.h_bf16 ? launch_typed<float, B>(stream, p) : launch_typed<float, float>(stream, p);
}

Status launch_gated_rms_norm(cudaStream_t stream, const GatedRmsNormParams& p) {
  if (p.rows <= 0 || p.Hv <= 0) return {};
  const int64_t blocks = (p.rows * p.Hv * 16 + 255) / 256;
  if (blocks > 0x7fffffff) return Error{Fault::kBug, fmt::format("gated_rms_norm: {} rows", p.rows)};
  return launch(stream, "gated_rms_norm", p.bf16 ? gated_rms_norm_kernel<__nv_bfloat16> : gated_rms_norm_kernel<float>,
                dim3(static_cast<unsigned>(blocks)), 256, 0, p);
}

}  // namespace quire::cuda
