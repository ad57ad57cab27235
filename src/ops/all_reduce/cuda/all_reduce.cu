#include "ops/all_reduce/cuda/all_reduce.h"

#include <algorithm>

#include "core/cuda/dependent_launch.cuh"
#include "core/cuda/launch.h"
#include "ops/cuda/vectors.cuh"

namespace quire::cuda {
namespace {

constexpr uint32_t kBroken = 1u << 31;  // in Meeting::meetings: a meeting failed

__device__ __forceinline__ void raise_flag(uint32_t* flag, uint32_t number) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(number) : "memory");
}
__device__ __forceinline__ uint32_t read_flag(const uint32_t* flag) {
  uint32_t number;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(number) : "l"(flag) : "memory");
  return number;
}
__device__ __forceinline__ uint64_t nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

// Until a flag is at `number` or beyond (a peer may be one meeting ahead). False: its rank has not come in time.
__device__ __forceinline__ bool wait_for_flag(const uint32_t* flag, uint32_t number, uint64_t patience_ns) {
  constexpr uint32_t kLooks = 256;  // between looks at the clock
  uint64_t begin = 0;
  for (uint32_t looks = 1;; ++looks) {
    if (static_cast<int32_t>((read_flag(flag) - number) << 1) >= 0) return true;  // numbers have 31 bits
    if (looks % kLooks != 0) continue;
    const uint64_t now = nanoseconds();
    if (begin == 0) begin = now;
    if (now - begin > patience_ns) return false;
  }
}

// This block's meeting with the others' of its number. What the kernels before this one wrote on any of the ranks can
// be read after. Thread r looks after rank r. A block whose meeting failed comes to no other: so a lost peer costs the
// patience once, and not with every call.
__device__ __forceinline__ void meet(const Meeting& m) {
  const auto r = static_cast<int32_t>(threadIdx.x);
  bool failed = false;
  uint32_t number = 0;
  if (r < m.of) {
    const uint32_t before = m.meetings[blockIdx.x];
    number = (before + 1) & ~kBroken;
    failed = (before & kBroken) != 0;
    if (!failed && r != m.rank) {
      raise_flag(m.flags[r] + m.rank * kMeetingBlocks + blockIdx.x, number);
      failed = !wait_for_flag(m.flags[m.rank] + r * kMeetingBlocks + blockIdx.x, number, m.patience_ns);
      if (failed) *m.error = static_cast<uint32_t>(r) + 1;
    }
  }
  failed = __syncthreads_or(failed);
  if (threadIdx.x == 0) m.meetings[blockIdx.x] = number | (failed ? kBroken : 0u);
}

// Four elements of another GPU's memory, which no cache on the way here has.
__device__ __forceinline__ Vec<4> load_peer(const float* p) {
  Vec<4> v;
  asm volatile("ld.relaxed.sys.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x[0]), "=f"(v.x[1]), "=f"(v.x[2]), "=f"(v.x[3])
               : "l"(p)
               : "memory");
  return v;
}
__device__ __forceinline__ Vec<4> load_peer(const __nv_bfloat16* p) {
  uint32_t low, high;
  asm volatile("ld.relaxed.sys.global.v2.u32 {%0, %1}, [%2];" : "=r"(low), "=r"(high) : "l"(p) : "memory");
  return {low_bf16(low), high_bf16(low), low_bf16(high), high_bf16(high)};
}

// A block for each row at a time, which stays in registers: kEach vectors of 4 per thread, as in add_rms_norm, so that
// the norm has the same bits. Weights and the first row of x come before the peers' rows are waited for.
template <class P, class H, int kRanks, int kEach>
__global__ void __launch_bounds__(512) all_reduce_kernel(const __grid_constant__ AllReduceParams p) {
  constexpr bool kWeightsAhead = kEach <= 4;
  let_next_kernel_start();
  touch(p);
  const auto column = [](int i) { return (static_cast<int64_t>(i) * blockDim.x + threadIdx.x) * 4; };
  Vec<4> weights[kWeightsAhead ? kEach : 1];
  if constexpr (kWeightsAhead) {
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (p.weight != nullptr && column(i) < p.D) weights[i] = load<4>(p.weight + column(i));
  }
  wait_for_previous_kernels();
  Vec<4> before[kEach];  // of x
  const auto load_x = [&](int64_t row) {
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (p.add_to_x && row < p.rows && column(i) < p.D) before[i] = load<4>(p.x + row * p.x_stride + column(i));
  };
  load_x(blockIdx.x);
  if (p.meeting.of > 1) meet(p.meeting);
  __shared__ float parts[32];
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    Vec<4> v[kEach];
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int64_t at = column(i);
      if (at >= p.D) break;
      Vec<4> theirs[kRanks];
#pragma unroll
      for (int r = 0; r < kRanks; ++r)
        if (r < p.count) theirs[r] = load_peer(static_cast<const P*>(p.partials[r]) + row * p.partial_stride + at);
      v[i] = theirs[0];
#pragma unroll
      for (int r = 1; r < kRanks; ++r)
        if (r < p.count) {
#pragma unroll
          for (int e = 0; e < 4; ++e) v[i].x[e] += theirs[r].x[e];
        }
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (p.add_to_x) v[i].x[e] = before[i].x[e] + v[i].x[e];
        sum = fmaf(v[i].x[e], v[i].x[e], sum);
      }
      store<4>(p.x + row * p.x_stride + at, v[i]);
    }
    load_x(row + gridDim.x);
    if (p.h == nullptr) continue;
    sum = warp_sum(sum);
    __syncthreads();  // the row before has read the parts
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = warp_sum(threadIdx.x % 32 < blockDim.x / 32 ? parts[threadIdx.x % 32] : 0.0f);
    const float scale = 1.0f / sqrtf(sum / static_cast<float>(p.D) + p.eps);
    H* h = static_cast<H*>(p.h) + row * p.h_stride;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int64_t at = column(i);
      if (at >= p.D) break;
      const Vec<4> w = kWeightsAhead ? weights[i] : load<4>(p.weight + at);
#pragma unroll
      for (int e = 0; e < 4; ++e) v[i].x[e] = v[i].x[e] * scale * w.x[e];
      store<4>(h + at, v[i]);
    }
  }
}

// Blocks that wait for others' must all find room at once, whatever order they start in.
template <class Kernel>
Result<unsigned> blocks_for(Kernel* kernel, int threads, const AllReduceParams& p) {
  int of_one = 0;
  QUIRE_CHECKED(check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&of_one, kernel, threads, 0), "all_reduce"));
  QUIRE_TRY(const DeviceLimits device, device_limits());
  const int64_t room = std::min<int64_t>(int64_t{of_one} * device.multiprocessors, kMeetingBlocks);
  return static_cast<unsigned>(std::min(p.rows, room));
}

template <class P, class H, int kRanks, int kEach>
Status launch_each(cudaStream_t stream, const AllReduceParams& p) {
  const int64_t vectors = p.D / 4;
  const auto threads = static_cast<int>(((vectors + kEach - 1) / kEach + 31) / 32 * 32);
  QUIRE_TRY(const unsigned blocks, blocks_for(all_reduce_kernel<P, H, kRanks, kEach>, threads, p));
  return launch(stream, "all_reduce", all_reduce_kernel<P, H, kRanks, kEach>, dim3(blocks), threads, 0, p);
}

template <class P, class H, int kRanks>
Status launch_ranks(cudaStream_t stream, const AllReduceParams& p) {
  if (p.D <= 512 * 4) return launch_each<P, H, kRanks, 1>(stream, p);
  if (p.D <= 2048 * 4) return launch_each<P, H, kRanks, 4>(stream, p);
  return launch_each<P, H, kRanks, 8>(stream, p);
}

template <class P, class H>
Status launch_typed(cudaStream_t stream, const AllReduceParams& p) {
  return p.count <= 2 ? launch_ranks<P, H, 2>(stream, p) : launch_ranks<P, H, kMostPeers>(stream, p);
}

}  // namespace

Status launch_all_reduce(cudaStream_t stream, const AllReduceParams& p) {
  if (p.rows <= 0) return {};
  using B = __nv_bfloat16;
  if (p.partial_bf16) return p.h_bf16 ? launch_typed<B, B>(stream, p) : launch_typed<B, float>(stream, p);
  return p.h_bf16 ? launch_typed<float, B>(stream, p) : launch_typed<float, float>(stream, p);
}

}  // namespace quire::cuda
