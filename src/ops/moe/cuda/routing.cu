// Routing on the device, with integers counted and never added atomically: the order of rows is that of the tokens.
#include "ops/moe/cuda/routing.h"

#include <algorithm>

#include "core/cuda/dependent_launch.cuh"
#include "core/cuda/launch.h"
#include "ops/moe/cuda/routing.cuh"

namespace quire::moe_cuda {
namespace {

constexpr int kCombineThreads = 128;
constexpr int kSmallRows = 8;  // routed and sorted by one block
constexpr int kRouteThreads = 64, kSortThreads = 1024, kSmallThreads = 512;

__device__ float* weights_of(const Routing& r, int32_t token) {
  return r.weights + static_cast<int64_t>(token) * r.results;
}
__device__ int32_t* chosen_of(const Routing& r, int32_t token) {
  return r.chosen == nullptr ? nullptr : r.chosen + static_cast<int64_t>(token) * r.top_k;
}

// A warp for each token's experts, then one for each token's share of the shared expert.
template <int kPerLane>
__global__ void __launch_bounds__(kRouteThreads) route_kernel(const Routing r) {
  cuda::begin_kernel(r);
  const auto i = static_cast<int32_t>(blockIdx.x * (kRouteThreads / 32) + threadIdx.x / 32);
  const int lane = threadIdx.x % 32;
  if (i < r.rows)
    route<kPerLane>(r, i, lane, r.choice + static_cast<int64_t>(i) * r.top_k, weights_of(r, i), chosen_of(r, i));
  else if (i < 2 * r.rows)
    weigh_shared(r, i - r.rows, lane, weights_of(r, i - r.rows));
}

__device__ void place(const Routing& r, int32_t* positions, int32_t position, int32_t token, int32_t rank) {
  const int32_t slot = token * r.results + rank;
  r.tokens[position] = token;
  r.slots[position] = slot;
  if (positions != nullptr) positions[slot] = position;
}
// The choice number `index` of all.
__device__ void place(const Routing& r, int32_t* positions, int32_t position, int32_t index) {
  place(r, positions, position, index / r.top_k, index % r.top_k);
}
// Every token chose the shared expert.
__device__ void place_shared(const Routing& r, int32_t* positions, int first, int step) {
  const int32_t begin = r.rows * r.top_k;
  for (int32_t t = first; t < r.rows; t += step) place(r, positions, begin + t, t, r.top_k);
  if (first == 0) r.offsets[r.experts + 1] = begin + r.rows;
}

// Few rows: one block does it all. A thread of each expert looks through the choices, which lie in shared memory.
template <int kPerLane>
__global__ void __launch_bounds__(kSmallThreads) route_small_kernel(const Routing r, int32_t* const positions) {
  __shared__ uint16_t choice[kSmallRows * kMaxTopK];
  cuda::begin_kernel(r);
  const int lane = threadIdx.x % 32;
  for (int32_t i = threadIdx.x / 32; i < 2 * r.rows; i += kSmallThreads / 32) {
    if (i < r.rows)
      route<kPerLane>(r, i, lane, choice + i * r.top_k, weights_of(r, i), chosen_of(r, i));
    else
      weigh_shared(r, i - r.rows, lane, weights_of(r, i - r.rows));
  }
  __syncthreads();
  const int32_t count = r.rows * r.top_k;
  for (int32_t e = threadIdx.x; e < r.experts; e += kSmallThreads) {
    int32_t before = 0;
    for (int32_t i = 0; i < count; ++i) before += choice[i] < e;
    r.offsets[e] = before;
    for (int32_t i = 0; i < count; ++i)
      if (choice[i] == e) place(r, positions, before++, i);
    if (e == r.experts - 1) r.offsets[r.experts] = count;
  }
  if (r.shared_sorted) place_shared(r, positions, threadIdx.x, kSmallThreads);
}

// Exclusive sum over a block of 32 warps, and its total. `sums` holds 33 integers.
__device__ int32_t block_prefix(int32_t own, int32_t* sums, int32_t* total) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int32_t sum = own;
  for (int d = 1; d < 32; d *= 2) {
    const int32_t other = __shfl_up_sync(kAll, sum, d);
    if (lane >= d) sum += other;
  }
  __syncthreads();
  if (lane == 31) sums[warp] = sum;
  __syncthreads();
  if (warp == 0) {
    const int32_t of_warp = sums[lane];
    int32_t before = of_warp;
    for (int d = 1; d < 32; d *= 2) {
      const int32_t other = __shfl_up_sync(kAll, before, d);
      if (lane >= d) before += other;
    }
    sums[lane] = before - of_warp;
    if (lane == 31) sums[32] = before;
  }
  __syncthreads();
  *total = sums[32];
  return sums[warp] + sum - own;
}

// Many rows: a block for each expert looks through all choices, eight of each thread at a time: how many go before its
// own, and where its own are. If the threads have to go on to further choices, they look through all again for the
// latter. 16384 tokens of 8 choices are 256 KB in the L2.
__global__ void __launch_bounds__(kSortThreads) sort_kernel(const Routing r, int32_t* const positions) {
  __shared__ int32_t sums[33], before_of[32], own_of[32];
  cuda::begin_kernel(r);
  const auto e = static_cast<int32_t>(blockIdx.x), threads = static_cast<int32_t>(blockDim.x);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (e == r.experts) return place_shared(r, positions, threadIdx.x, threads);
  const int32_t count = r.rows * r.top_k;
  int32_t before = 0, own = 0;
  // Which of eight choices are of this expert.
  const auto look = [&](int32_t i) -> uint32_t {
    if (i >= count) return 0;
    alignas(16) uint16_t c[8];
    *reinterpret_cast<uint4*>(c) = *reinterpret_cast<const uint4*>(r.choice + i);
    uint32_t mine = 0;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      before += i + k < count && c[k] < e;
      mine |= static_cast<uint32_t>(i + k < count && c[k] == e) << k;
    }
    return mine;
  };
  const auto place_all = [&](int32_t to, int32_t i, uint32_t mine) {
    for (; mine != 0; mine &= mine - 1) place(r, positions, to++, i + __ffs(static_cast<int>(mine)) - 1);
  };
  uint32_t mine = 0;
  for (int32_t i = threadIdx.x * 8; i < count; i += threads * 8) own += __popc(mine = look(i));
  int32_t sum = own;  // of this lane and those before it
  for (int d = 1; d < 32; d *= 2) {
    const int32_t other = __shfl_up_sync(kAll, sum, d);
    if (lane >= d) sum += other;
  }
  before = __reduce_add_sync(kAll, before);
  if (lane == 31) before_of[warp] = before, own_of[warp] = sum;
  __syncthreads();
  const bool there = lane < threads / 32;
  const int32_t all_before = __reduce_add_sync(kAll, there ? before_of[lane] : 0);
  const int32_t of_warp = there ? own_of[lane] : 0, all_own = __reduce_add_sync(kAll, of_warp);
  if (threadIdx.x == 0) {
    r.offsets[e] = all_before;
    if (e == r.experts - 1) r.offsets[r.experts] = count;
  }
  if (all_own == 0) return;
  if (count <= threads * 8)
    return place_all(all_before + __reduce_add_sync(kAll, lane < warp ? of_warp : 0) + sum - own, threadIdx.x * 8,
                     mine);
  int32_t at = all_before;
  for (int32_t first = 0; first < count; first += threads * 8) {
    const int32_t i = first + threadIdx.x * 8;
    mine = look(i);
    int32_t here = 0;
    place_all(at + block_prefix(__popc(mine), sums, &here), i, mine);
    at += here;
  }
}

constexpr int kScatterThreads = 256, kScatterWidth = 512;

// A warp for each 512 columns of a token: read once, written `copies` times.
__global__ void __launch_bounds__(kScatterThreads) scatter_kernel(const Scatter s) {
  cuda::begin_kernel(s);
  const int32_t pieces = (s.width + kScatterWidth - 1) / kScatterWidth;
  const int64_t warp = blockIdx.x * int64_t{kScatterThreads / 32} + threadIdx.x / 32;
  const auto t = static_cast<int32_t>(warp / pieces), piece = static_cast<int32_t>(warp % pieces);
  if (t >= s.rows) return;
  constexpr int kEach = kScatterWidth / (32 * 8);
  uint4 v[kEach];
  int32_t at[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    at[i] = piece * kScatterWidth + (32 * i + static_cast<int32_t>(threadIdx.x % 32)) * 8;
    if (at[i] < s.width) v[i] = *reinterpret_cast<const uint4*>(s.h + t * s.h_stride + at[i]);
  }
  const int32_t* const positions = s.positions + static_cast<int64_t>(t) * s.results;
#pragma unroll 4
  for (int32_t r = 0; r < s.copies; ++r) {
    __nv_bfloat16* const to = s.to + static_cast<int64_t>(positions[r]) * s.width;
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (at[i] < s.width) *reinterpret_cast<uint4*>(to + at[i]) = v[i];
  }
}

__global__ void __launch_bounds__(kCombineThreads) combine_kernel(const Combine c) {
  cuda::begin_kernel(c);
  const int64_t t = blockIdx.x / c.blocks;
  const __nv_bfloat16* results = c.results + t * c.count * c.width;
  for (int32_t d = (blockIdx.x % c.blocks * kCombineThreads + threadIdx.x) * 8; d < c.width;
       d += c.blocks * kCombineThreads * 8) {
    float* x = c.x + t * c.x_stride + d;
    float sum[8] = {};
    if (c.add_to_x) {
      *reinterpret_cast<float4*>(sum) = *reinterpret_cast<const float4*>(x);
      *reinterpret_cast<float4*>(sum + 4) = *reinterpret_cast<const float4*>(x + 4);
    }
#pragma unroll 4
    for (int32_t k = 0; k < c.count; ++k) {
      const float w = c.weights[t * c.count + k];
      const uint4 bits = *reinterpret_cast<const uint4*>(results + static_cast<int64_t>(k) * c.width + d);
      const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sum[2 * i] = __fmaf_rn(w, __uint_as_float(words[i] << 16), sum[2 * i]);
        sum[2 * i + 1] = __fmaf_rn(w, __uint_as_float(words[i] & 0xffff0000u), sum[2 * i + 1]);
      }
    }
    *reinterpret_cast<float4*>(x) = *reinterpret_cast<const float4*>(sum);
    *reinterpret_cast<float4*>(x + 4) = *reinterpret_cast<const float4*>(sum + 4);
  }
}

template <int kPerLane>
Status launch_route(cudaStream_t stream, const Routing& r, int32_t* positions) {
  if (r.rows <= kSmallRows)
    return cuda::launch(stream, "moe: routing", route_small_kernel<kPerLane>, dim3(1), kSmallThreads, 0, r, positions);
  const int32_t warps = r.rows * (r.results > r.top_k ? 2 : 1);
  QUIRE_CHECKED(cuda::launch(stream, "moe: routing", route_kernel<kPerLane>,
                             dim3(static_cast<unsigned>((warps * 32 + kRouteThreads - 1) / kRouteThreads)),
                             kRouteThreads, 0, r));
  // A thread for each eight choices, and no more: a block of few threads starts and adds up sooner.
  const int threads = std::clamp((r.rows * r.top_k + 255) / 256 * 32, 32, kSortThreads);
  return cuda::launch(stream, "moe: sorting", sort_kernel,
                      dim3(static_cast<unsigned>(r.experts + (r.shared_sorted ? 1 : 0))), threads, 0, r, positions);
}

}  // namespace

Status launch_routing(cudaStream_t stream, const Routing& r, int32_t* positions) {
  if (r.experts <= 256) return launch_route<8>(stream, r, positions);
  return launch_route<32>(stream, r, positions);
}

Status launch_scatter(cudaStream_t stream, const Scatter& s) {
  const int64_t warps = int64_t{s.rows} * ((s.width + kScatterWidth - 1) / kScatterWidth);
  return cuda::launch(stream, "moe: scattering rows", scatter_kernel,
                      dim3(static_cast<unsigned>((warps * 32 + kScatterThreads - 1) / kScatterThreads)),
                      kScatterThreads, 0, s);
}

Status launch_combine(cudaStream_t stream, const Combine& c) {
  Combine mine = c;
  mine.blocks = c.rows < 128 ? std::max(c.width / (8 * kCombineThreads), 1) : 1;
  return cuda::launch(stream, "moe: combine", combine_kernel, dim3(static_cast<unsigned>(c.rows * mine.blocks)),
                      kCombineThreads, 0, mine);
}

}  // namespace quire::moe_cuda
