// Routing on the device, with integers counted and never added atomically: the order of rows is that of the tokens.
#include "ops/moe/cuda/routing.h"

#include <algorithm>
#include <climits>

#include "ops/moe/cuda/moe.h"

#include "core/cuda/dependent_launch.cuh"
#include "core/cuda/launch.h"

namespace quire::moe_cuda {
namespace {

constexpr unsigned kAll = 0xffffffffu;
constexpr int kCombineThreads = 128;
constexpr int kSmallRows = 8;  // routed and sorted by one block
constexpr int kSortThreads = 1024, kSmallThreads = 512;

__device__ float warp_sum(float v) {
  for (int d = 16; d > 0; d /= 2) v = __fadd_rn(v, __shfl_xor_sync(kAll, v, d));
  return v;
}

// sigmoid(shared_router . h[t]); eight columns of a lane at a time, then a tree over lanes.
__device__ float shared_gate(const Routing& r, int32_t token, int lane) {
  if (r.shared_router == nullptr) return 1.0f;
  float sum = 0;
#pragma unroll 8
  for (int32_t c = lane * 8; c < r.width; c += 256) {
    const uint4 bits = *reinterpret_cast<const uint4*>(r.h + token * r.h_stride + c);
    const float4 w0 = *reinterpret_cast<const float4*>(r.shared_router + c);
    const float4 w1 = *reinterpret_cast<const float4*>(r.shared_router + c + 4);
    const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
    const float weights[8] = {w0.x, w0.y, w0.z, w0.w, w1.x, w1.y, w1.z, w1.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sum = __fmaf_rn(__uint_as_float(words[i] << 16), weights[2 * i], sum);
      sum = __fmaf_rn(__uint_as_float(words[i] & 0xffff0000u), weights[2 * i + 1], sum);
    }
  }
  return __frcp_rn(__fadd_rn(1.0f, expf(-warp_sum(sum))));
}

// A float as an unsigned integer of the same order; NaN is the smallest of all.
__device__ uint32_t ordered(float v) {
  const uint32_t bits = __float_as_uint(v);
  if (isnan(v)) return 0;
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ float from_ordered(uint32_t o) {
  if (o == 0) return -INFINITY;
  return __uint_as_float((o & 0x80000000u) != 0 ? o & 0x7fffffffu : ~o);
}

// Routes a token, by one warp: lane l holds the logits of experts l, l + 32, ... The softmax over the chosen alone is the
// contract's: the sum of the k largest of E probabilities is at least k / E, far above its lower bound.
template <int kPerLane>
__device__ void route(const Routing& r, int32_t token, int lane, uint16_t* choice) {
  float logit[kPerLane] = {};
  const float scale = r.scale == nullptr ? 1.0f : r.scale[0];
#pragma unroll 8
  for (int32_t part = 0; part < r.parts; ++part) {
    const float* from = r.logits + (static_cast<int64_t>(part) * r.rows + token) * r.experts + lane;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      if (lane + 32 * i < r.experts) logit[i] = __fadd_rn(logit[i], from[32 * i]);
  }
  uint32_t left[kPerLane];
  uint32_t open = 0;  // bit i: expert lane + 32 i may still be chosen
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    left[i] = ordered(__fmul_rn(logit[i], scale));
    if (lane + 32 * i < r.experts) open |= 1u << i;
  }
  float mine = 0, top = 0, total = 0;  // lane k: e^(its logit - the largest)
  for (int k = 0; k < r.top_k; ++k) {
    uint32_t best = 0;
    int at = INT_MAX;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      if ((open >> i & 1u) != 0 && (at == INT_MAX || left[i] > best)) best = left[i], at = lane + 32 * i;
    const uint32_t most = __reduce_max_sync(kAll, best);
    at = __reduce_min_sync(kAll, best == most ? at : INT_MAX);
    if (k == 0) top = from_ordered(most);
    const float p = expf(from_ordered(most) - top);
    total = __fadd_rn(total, p);
    if (lane == k) mine = p;
    if (at % 32 == lane) open &= ~(1u << (at / 32));
    if (lane == 0) {
      choice[k] = static_cast<uint16_t>(at);
      if (r.chosen != nullptr) r.chosen[static_cast<int64_t>(token) * r.top_k + k] = at;
    }
  }
  if (lane < r.top_k) r.weights[static_cast<int64_t>(token) * r.results + lane] = __fdiv_rn(mine, total);
}

__device__ void weigh_shared(const Routing& r, int32_t token, int lane) {
  if (r.results == r.top_k) return;
  const float gate = shared_gate(r, token, lane);
  if (lane == 0) r.weights[static_cast<int64_t>(token) * r.results + r.top_k] = gate;
}

template <int kPerLane>
__global__ void __launch_bounds__(128) route_kernel(const Routing r) {
  cuda::begin_kernel();
  const int32_t token = static_cast<int32_t>(blockIdx.x) * 4 + threadIdx.x / 32;
  if (token >= r.rows) return;
  route<kPerLane>(r, token, threadIdx.x % 32, r.choice + static_cast<int64_t>(token) * r.top_k);
  weigh_shared(r, token, threadIdx.x % 32);
}

__device__ void place(const Routing& r, int32_t position, int32_t index) {
  r.tokens[position] = index / r.top_k;
  r.slots[position] = index / r.top_k * r.results + index % r.top_k;
}
// Every token chose the shared expert.
__device__ void place_shared(const Routing& r, int first, int step) {
  const int32_t begin = r.rows * r.top_k;
  for (int32_t t = first; t < r.rows; t += step) {
    r.tokens[begin + t] = t;
    r.slots[begin + t] = t * r.results + r.top_k;
  }
  if (first == 0) r.offsets[r.experts + 1] = begin + r.rows;
}

// Few rows: one block does it all. A thread of each expert looks through the choices, which lie in shared memory.
template <int kPerLane>
__global__ void __launch_bounds__(kSmallThreads) route_small_kernel(const Routing r) {
  __shared__ uint16_t choice[kSmallRows * kMaxTopK];
  cuda::begin_kernel();
  const int lane = threadIdx.x % 32;
  for (int32_t i = threadIdx.x / 32; i < 2 * r.rows; i += kSmallThreads / 32) {
    if (i < r.rows)
      route<kPerLane>(r, i, lane, choice + i * r.top_k);
    else
      weigh_shared(r, i - r.rows, lane);
  }
  __syncthreads();
  const int32_t count = r.rows * r.top_k;
  for (int32_t e = threadIdx.x; e < r.experts; e += kSmallThreads) {
    int32_t before = 0;
    for (int32_t i = 0; i < count; ++i) before += choice[i] < e;
    r.offsets[e] = before;
    for (int32_t i = 0; i < count; ++i)
      if (choice[i] == e) place(r, before++, i);
    if (e == r.experts - 1) r.offsets[r.experts] = count;
  }
  if (r.shared_sorted) place_shared(r, threadIdx.x, kSmallThreads);
}

// Exclusive sum over the block, and its total. `sums` holds 33 integers.
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

// Many rows: a block for each expert looks through all choices twice, eight at a time: how many go before its own, and where
// its own are. 16384 tokens of 8 choices are 256 KB in the L2.
__global__ void __launch_bounds__(kSortThreads) sort_kernel(const Routing r) {
  __shared__ int32_t sums[33];
  cuda::begin_kernel();
  const auto e = static_cast<int32_t>(blockIdx.x);
  if (e == r.experts) return place_shared(r, threadIdx.x, kSortThreads);
  const int32_t count = r.rows * r.top_k;
  const auto load = [&](int32_t i, uint16_t(&c)[8]) {
    *reinterpret_cast<uint4*>(c) = *reinterpret_cast<const uint4*>(r.choice + i);
  };
  int32_t before = 0, own = 0;
  for (int32_t i = threadIdx.x * 8; i < count; i += kSortThreads * 8) {
    alignas(16) uint16_t c[8];
    load(i, c);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      before += i + k < count && c[k] < e;
      own += i + k < count && c[k] == e;
    }
  }
  int32_t all_before = 0, all_own = 0;
  block_prefix(before, sums, &all_before);
  block_prefix(own, sums, &all_own);
  if (threadIdx.x == 0) {
    r.offsets[e] = all_before;
    if (e == r.experts - 1) r.offsets[r.experts] = count;
  }
  if (all_own == 0) return;
  int32_t at = all_before;
  for (int32_t first = 0; first < count; first += kSortThreads * 8) {
    const int32_t i = first + threadIdx.x * 8;
    alignas(16) uint16_t c[8] = {};
    if (i < count) load(i, c);
    uint32_t mine = 0;
#pragma unroll
    for (int k = 0; k < 8; ++k) mine |= static_cast<uint32_t>(i + k < count && c[k] == e) << k;
    int32_t here = 0;
    int32_t to = at + block_prefix(__popc(mine), sums, &here);
    for (; mine != 0; mine &= mine - 1) place(r, to++, i + __ffs(static_cast<int>(mine)) - 1);
    at += here;
  }
}

// A warp for each row.
__global__ void __launch_bounds__(256) gather_kernel(const Gather g) {
  cuda::begin_kernel();
  const int32_t i = static_cast<int32_t>(blockIdx.x) * 8 + threadIdx.x / 32;
  if (i >= *g.count) return;
  const auto* from = reinterpret_cast<const uint4*>(g.h + g.rows[i] * g.h_stride);
  auto* to = reinterpret_cast<uint4*>(g.to + static_cast<int64_t>(i) * g.width);
#pragma unroll 8
  for (int c = threadIdx.x % 32; c < g.width / 8; c += 32) to[c] = from[c];
}

__global__ void __launch_bounds__(kCombineThreads) combine_kernel(const Combine c) {
  cuda::begin_kernel();
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
Status launch_route(cudaStream_t stream, const Routing& r) {
  if (r.rows <= kSmallRows)
    return cuda::launch(stream, "moe: routing", route_small_kernel<kPerLane>, dim3(1), kSmallThreads, 0, r);
  QUIRE_CHECKED(cuda::launch(stream, "moe: routing", route_kernel<kPerLane>,
                             dim3(static_cast<unsigned>(r.rows + 3) / 4), 128, 0, r));
  return cuda::launch(stream, "moe: sorting", sort_kernel,
                      dim3(static_cast<unsigned>(r.experts + (r.shared_sorted ? 1 : 0))), kSortThreads, 0, r);
}

}  // namespace

Status launch_routing(cudaStream_t stream, const Routing& r) {
  if (r.experts <= 256) return launch_route<8>(stream, r);
  return launch_route<32>(stream, r);
}

Status launch_gather(cudaStream_t stream, const Gather& g) {
  return cuda::launch(stream, "moe: gathering rows", gather_kernel,
                      dim3(static_cast<unsigned>((g.most + 7) / 8)), 256, 0, g);
}

Status launch_combine(cudaStream_t stream, const Combine& c) {
  Combine mine = c;
  mine.blocks = c.rows < 128 ? std::max(c.width / (8 * kCombineThreads), 1) : 1;
  return cuda::launch(stream, "moe: combine", combine_kernel,
                      dim3(static_cast<unsigned>(c.rows * mine.blocks)), kCombineThreads, 0, mine);
}

}  // namespace quire::moe_cuda
