// Queries and keys of vision_attention turned by where their patches lie: a block has one row. A thread has four
// neighbouring elements of the first half of a head, and their partners in the second.
#include "core/cuda/dependent_launch.cuh"
#include "core/cuda/launch.h"
#include "ops/attention/cuda/ptx.cuh"
#include "ops/vision_attention/cuda/attend.h"

namespace quire::cuda {
namespace {

constexpr int kThreads = 256, kMostPairs = 256;

// Four elements; products and sums are rounded one by one, as on a CPU.
struct Four {
  float x[4];

  __device__ explicit Four(uint2 raw) : x{low_bf16(raw.x), high_bf16(raw.x), low_bf16(raw.y), high_bf16(raw.y)} {}
  __device__ uint2 raw() const { return make_uint2(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3])); }
};
__device__ void turn(Four& a, Four& b, const float2* by) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float first = a.x[i], second = b.x[i], cos = by[i].x, sin = by[i].y;
    a.x[i] = __fsub_rn(__fmul_rn(first, cos), __fmul_rn(second, sin));
    b.x[i] = __fadd_rn(__fmul_rn(second, cos), __fmul_rn(first, sin));
  }
}

__global__ void __launch_bounds__(kThreads) turn_kernel(const __grid_constant__ TurnParams p) {
  begin_kernel(p);
  __shared__ float2 turns[kMostPairs];  // cosine and sine of a head's pairs
  const int64_t row = blockIdx.x;
  const int half = p.d / 2, quarter = p.d / 4, fours = half / 4;
  const int pair = static_cast<int>(threadIdx.x);
  if (pair < half) {
    const auto at = static_cast<float>(p.positions[row * p.position_stride + pair / quarter]);
    sincosf(__fmul_rn(at, p.inv_freq[pair % quarter]), &turns[pair].y, &turns[pair].x);
  }
  __syncthreads();
  const int of_head = p.heads * fours;
  for (int i = static_cast<int>(threadIdx.x); i < 2 * of_head; i += kThreads) {
    const bool key = i >= of_head;
    const int own = key ? i - of_head : i, head = own / fours, column = own % fours * 4, at = head * p.d + column;
    const __nv_bfloat16* const from = (key ? p.k + row * p.k_stride : p.q + row * p.q_stride) + at;
    __nv_bfloat16* const to = (key ? p.k_to : p.q_to) + row * p.heads * p.d + at;
    Four a(*reinterpret_cast<const uint2*>(from)), b(*reinterpret_cast<const uint2*>(from + half));
    turn(a, b, turns + column);
    *reinterpret_cast<uint2*>(to) = a.raw();
    *reinterpret_cast<uint2*>(to + half) = b.raw();
  }
}

}  // namespace

Status launch_turn(cudaStream_t stream, const TurnParams& p) {
  if (p.rows <= 0 || p.heads <= 0) return {};
  return launch(stream, "turning queries and keys", turn_kernel, dim3(static_cast<unsigned>(p.rows)), kThreads, 0, p);
}

}  // namespace quire::cuda
