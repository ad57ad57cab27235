// Queries and keys of vision_attention turned by where their patches lie: a block has one row. A thread has some
// neighbouring elements of a head, and their partners: four where pairs lie across a head's halves, two where they lie
// within them, because a quarter of a head is a multiple of two elements.
#include "core/cuda/dependent_launch.cuh"
#include "core/cuda/launch.h"
#include "ops/attention/cuda/ptx.cuh"
#include "ops/vision_attention/cuda/attend.h"

namespace quire::cuda {
namespace {

constexpr int kThreads = 256, kMostPairs = 256;

// Elements in bits as they lie in memory.
struct Four {
  using Raw = uint2;
  static constexpr int kCount = 4;
  float x[4];

  __device__ explicit Four(uint2 raw) : x{low_bf16(raw.x), high_bf16(raw.x), low_bf16(raw.y), high_bf16(raw.y)} {}
  __device__ uint2 raw() const { return make_uint2(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3])); }
};
struct Two {
  using Raw = uint32_t;
  static constexpr int kCount = 2;
  float x[2];

  __device__ explicit Two(uint32_t raw) : x{low_bf16(raw), high_bf16(raw)} {}
  __device__ uint32_t raw() const { return pack_bf16(x[0], x[1]); }
};
// Products and sums are rounded one by one, as on a CPU.
template <class Some>
__device__ void turn(Some& a, Some& b, const float2* by) {
#pragma unroll
  for (int i = 0; i < Some::kCount; ++i) {
    const float first = a.x[i], second = b.x[i], cos = by[i].x, sin = by[i].y;
    a.x[i] = __fsub_rn(__fmul_rn(first, cos), __fmul_rn(second, sin));
    b.x[i] = __fadd_rn(__fmul_rn(second, cos), __fmul_rn(first, sin));
  }
}

template <class Some, PlanePairs kPairs>
__global__ void __launch_bounds__(kThreads) turn_kernel(const __grid_constant__ TurnParams p) {
  begin_kernel(p);
  __shared__ float2 turns[kMostPairs];  // cosine and sine of a head's pairs
  const int64_t row = blockIdx.x;
  constexpr bool kAcross = kPairs == PlanePairs::kAcross;
  const int half = p.d / 2, quarter = p.d / 4, pieces = half / Some::kCount, apart = kAcross ? half : quarter;
  const int pair = static_cast<int>(threadIdx.x);
  if (pair < half) {
    const auto at = static_cast<float>(p.positions[row * p.position_stride + pair / quarter]);
    sincosf(__fmul_rn(at, p.inv_freq[pair % quarter]), &turns[pair].y, &turns[pair].x);
  }
  __syncthreads();
  const int of_head = p.heads * pieces;
  for (int i = static_cast<int>(threadIdx.x); i < 2 * of_head; i += kThreads) {
    const bool key = i >= of_head;
    const int own = key ? i - of_head : i, head = own / pieces, first = own % pieces * Some::kCount;
    const int at = head * p.d + first + (kAcross || first < quarter ? 0 : quarter);
    const __nv_bfloat16* const from = (key ? p.k + row * p.k_stride : p.q + row * p.q_stride) + at;
    __nv_bfloat16* const to = (key ? p.k_to : p.q_to) + row * p.heads * p.d + at;
    using Raw = typename Some::Raw;
    Some a(*reinterpret_cast<const Raw*>(from)), b(*reinterpret_cast<const Raw*>(from + apart));
    turn(a, b, turns + first);
    *reinterpret_cast<Raw*>(to) = a.raw();
    *reinterpret_cast<Raw*>(to + apart) = b.raw();
  }
}

}  // namespace

Status launch_turn(cudaStream_t stream, const TurnParams& p) {
  if (p.rows <= 0 || p.heads <= 0) return {};
  const auto kernel =
      p.pairs == PlanePairs::kAcross ? turn_kernel<Four, PlanePairs::kAcross> : turn_kernel<Two, PlanePairs::kWithin>;
  return launch(stream, "turning queries and keys", kernel, dim3(static_cast<unsigned>(p.rows)), kThreads, 0, p);
}

}  // namespace quire::cuda
