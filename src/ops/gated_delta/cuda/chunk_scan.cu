// The part of the chunked form that walks the chunks of a sequence: a block per segment, value head and slab
// of value columns.
//
// Everything is computed transposed, value columns as the rows of products: then a warp owns 16 value
// columns, no value column needs another, and what one product leaves (D) is what the next one takes (A)
// without leaving the warp's registers. The state of a warp is 64 registers per lane. Two warps share 16
// columns: one carries the state (K S, the triangular system, the update), the other makes the outputs (Q S,
// P R), fed through shared memory with the state and R as the first one has them in registers; it also copies
// the chunk after next, or as many ahead as shared memory has room for. (With two warps for that alone the
// others waited for them.)
#include "core/cuda/launch.h"
#include "core/cuda/tensor_core.cuh"
#include "ops/gated_delta/cuda/chunk.cuh"
#include "ops/gated_delta/cuda/device.cuh"

namespace quire::cuda {
namespace {

constexpr int kD = kDeltaHead;
constexpr int kRowPitch = kD + 8, kMatrixPitch = kChunk + 8;  // bf16: rows of 8 in different banks
constexpr float kScale = 0.08838834764831845f;                // Dk^(-1/2)

template <int kSlab>
struct Stage {
  __nv_bfloat16 k[kChunk][kRowPitch], q[kChunk][kRowPitch];
  __nv_bfloat16 solve[kChunk][kMatrixPitch], weights[kChunk][kMatrixPitch];
  __nv_bfloat16 v[kChunk][kSlab + 8];
  float factors[3][kChunk];  // as ChunkData
};

// kStages: chunks that are there or on their way.
template <int kSlab, int kStages>
struct Shared {
  static constexpr int kWarps = kSlab / 16;
  Stage<kSlab> stages[kStages];
  uint4 state[2][kWarps][kD / 16][32];    // the entering state as A operands, by parity of the chunk
  uint4 change[kWarps][kChunk / 16][32];  // R as A operands
};

template <int kSlab, int kStages>
struct Walk {
  static constexpr int kWarps = kSlab / 16, kThreads = 2 * kWarps * 32, kCopyThreads = kWarps * 32;
  const GdnChunkedParams& p;
  const Segment seg;
  const int head, key_head, slab;
  const ChunkData* const data;  // of the segment's first chunk and this head; chunks are Hv apart
  Shared<kSlab, kStages>& sh;
  const int chunks = (seg.count + kChunk - 1) / kChunk;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // Where a lane's row of four 8 x 8 matrices begins: [2 of 8 rows][2 of 8 columns], rows or columns first.
  const int rows_first = lane % 16, rows_first_column = lane / 16 * 8;
  const int columns_first = lane % 8 + lane / 16 * 8, columns_first_column = lane / 8 % 2 * 8;

  __device__ void next_chunk() const { barrier_sync<kThreads>(0); }

  // ---- copying, by the warps that make outputs ----

  // 64 rows of 8 kPieces elements; rows from `tokens` on become zeros.
  template <int kPieces>
  __device__ void copy_rows(__nv_bfloat16* to, int pitch, const __nv_bfloat16* from, int64_t from_pitch, int tokens,
                            int thread) const {
    constexpr int kRows = kCopyThreads / kPieces;  // at once
    const int first = thread / kPieces, column = thread % kPieces * 8;
    const __nv_bfloat16* source = from + first * from_pitch + column;
    __nv_bfloat16* target = to + first * pitch + column;
#pragma unroll
    for (int t = 0; t < kChunk; t += kRows) {
      const bool valid = t + first < tokens;
      copy_async(target + t * pitch, valid ? source : from, valid);
      source += kRows * from_pitch;
    }
  }
  __device__ void copy_lower(__nv_bfloat16 (*to)[kMatrixPitch], const __nv_bfloat16 (*from)[kChunk], int thread) const {
    constexpr int kRows = kCopyThreads / 8;
    static_assert(kRows <= 16);
#pragma unroll
    for (int t = 0; t < kChunk; t += kRows)
      if (lower_piece(t, thread % 8))
        copy_async(&to[t + thread / 8][thread % 8 * 8], &from[t + thread / 8][thread % 8 * 8]);
  }
  __device__ void copy_chunk(int c, int thread) const {
    if (c < chunks) {
      Stage<kSlab>& to = sh.stages[c % kStages];
      const int tokens = min(kChunk, seg.count - c * kChunk);
      const int64_t row = seg.row + c * kChunk;
      const int Hk = p.shape.Hk, Hv = p.shape.Hv;
      const ChunkData& from = data[static_cast<int64_t>(c) * Hv];
      copy_rows<kD / 8>(&to.k[0][0], kRowPitch, p.k + (row * Hk + key_head) * kD, int64_t{Hk} * kD, tokens, thread);
      copy_rows<kD / 8>(&to.q[0][0], kRowPitch, p.q + (row * Hk + key_head) * kD, int64_t{Hk} * kD, tokens, thread);
      copy_rows<kSlab / 8>(&to.v[0][0], kSlab + 8, p.v + (row * Hv + head) * kD + slab * kSlab, int64_t{Hv} * kD,
                           tokens, thread);
      copy_lower(to.solve, from.solve, thread);
      copy_lower(to.weights, from.weights, thread);
      if (thread < 3 * kChunk / 4) copy_async(&to.factors[0][0] + thread * 4, &from.factors[0][0] + thread * 4);
    }
    copy_commit();
  }

  // ---- the state ----

  // Row `half` * 8 + lane / 4 of the warp's value columns, in the slot.
  __device__ float* slot_row(int warp, int half) const {
    const int column = slab * kSlab + warp * 16 + lane / 4 + half * 8;
    return of_slot(p.slots.state, seg.state_slot) + (static_cast<int64_t>(head) * kD + column) * kD + lane % 4 * 2;
  }
  static __device__ void operand(uint32_t (&a)[4], const float (&left)[4], const float (&right)[4]) {
    a[0] = pack_bf16(left[0], left[1]);
    a[1] = pack_bf16(left[2], left[3]);
    a[2] = pack_bf16(right[0], right[1]);
    a[3] = pack_bf16(right[2], right[3]);
  }
  // [16, 16 * 4 blocks] += a * (rows of m)^T, columns 16 s .. of m; blocks from `first` on.
  template <int kPitch>
  __device__ void multiply_rows(float (&sum)[8][4], const uint32_t (&a)[4], const __nv_bfloat16 (*m)[kPitch], int s,
                                int first) const {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      if (n < first) continue;
      uint32_t b[4];
      load_matrices(b, shared_address(&m[n * 16 + columns_first][s * 16 + columns_first_column]));
      mma_bf16(sum[2 * n], a, b[0], b[1]);
      mma_bf16(sum[2 * n + 1], a, b[2], b[3]);
    }
  }

  __device__ void publish_state(const float (&s)[16][4], int warp, int chunk) const {
#pragma unroll
    for (int i = 0; i < kD / 16; ++i) {
      uint32_t a[4];
      operand(a, s[2 * i], s[2 * i + 1]);
      sh.state[chunk % 2][warp][i][lane] = {a[0], a[1], a[2], a[3]};
    }
  }

  // Z = V - e^c K S as A operands; leaves beta Z in `sum`, which comes as K S.
  __device__ void right_hand_sides(const Stage<kSlab>& in, float (&sum)[8][4], uint32_t (&z)[4][4], int warp) const {
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      uint32_t v[4];  // token tiles 2s, 2s + 1, each for value columns 0-7 and 8-15
      load_matrices_transposed(v, shared_address(&in.v[s * 16 + columns_first][warp * 16 + columns_first_column]));
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        const int t = s * 16 + tile * 8 + lane % 4 * 2;
        const float2 entry = *reinterpret_cast<const float2*>(&in.factors[kEntry][t]);
        const float2 beta = *reinterpret_cast<const float2*>(&in.factors[kBeta][t]);
        float(&x)[4] = sum[2 * s + tile];
        x[0] = fmaf(-entry.x, x[0], low_bf16(v[2 * tile]));
        x[1] = fmaf(-entry.y, x[1], high_bf16(v[2 * tile]));
        x[2] = fmaf(-entry.x, x[2], low_bf16(v[2 * tile + 1]));
        x[3] = fmaf(-entry.y, x[3], high_bf16(v[2 * tile + 1]));
        z[s][2 * tile] = pack_bf16(x[0], x[1]);
        z[s][2 * tile + 1] = pack_bf16(x[2], x[3]);
        x[0] *= beta.x, x[1] *= beta.y, x[2] *= beta.x, x[3] *= beta.y;
      }
    }
  }

  // S <- e^(c_64) S + K^T (e^(c_64 - c) R), all transposed.
  __device__ void update(const Stage<kSlab>& in, float (&state)[16][4], float (&r)[8][4]) const {
    const float whole = in.factors[kEntry][kChunk - 1];
#pragma unroll
    for (int n = 0; n < 16; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) state[n][e] *= whole;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float2 exit = *reinterpret_cast<const float2*>(&in.factors[kExit][n * 8 + lane % 4 * 2]);
      r[n][0] *= exit.x, r[n][1] *= exit.y, r[n][2] *= exit.x, r[n][3] *= exit.y;
    }
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      uint32_t a[4];
      operand(a, r[2 * s], r[2 * s + 1]);
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        uint32_t b[4];
        load_matrices_transposed(b, shared_address(&in.k[s * 16 + rows_first][n * 16 + rows_first_column]));
        mma_bf16(state[2 * n], a, b[0], b[1]);
        mma_bf16(state[2 * n + 1], a, b[2], b[3]);
      }
    }
  }

  __device__ void carry(int warp) const {
    float state[16][4];  // value columns lane / 4 (+ 8), keys 8 n + lane % 4 * 2 (+ 1)
#pragma unroll
    for (int n = 0; n < 16; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float2 x = {0.0f, 0.0f};
        if (seg.position > 0) x = *reinterpret_cast<const float2*>(slot_row(warp, half) + n * 8);
        state[n][2 * half] = x.x, state[n][2 * half + 1] = x.y;
      }
    publish_state(state, warp, 0);
#pragma unroll 1
    for (int c = 0; c < chunks; ++c) {
      if constexpr (kStages == 1) next_chunk();
      next_chunk();
      const Stage<kSlab>& in = sh.stages[c % kStages];
      float sum[8][4] = {};
#pragma unroll
      for (int s = 0; s < kD / 16; ++s) {
        uint32_t a[4];
        operand(a, state[2 * s], state[2 * s + 1]);
        multiply_rows(sum, a, in.k, s, 0);
      }
      uint32_t z[4][4];
      right_hand_sides(in, sum, z, warp);
#pragma unroll
      for (int s = 0; s < 4; ++s) multiply_rows(sum, z[s], in.solve, s, s);
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        uint32_t a[4];
        operand(a, sum[2 * s], sum[2 * s + 1]);
        sh.change[warp][s][lane] = {a[0], a[1], a[2], a[3]};
      }
      barrier_arrive<64>(1 + warp);
      update(in, state, sum);
      publish_state(state, warp, c + 1);
    }
#pragma unroll
    for (int n = 0; n < 16; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        *reinterpret_cast<float2*>(slot_row(warp, half) + n * 8) = {state[n][2 * half], state[n][2 * half + 1]};
  }

  // ---- the outputs ----

  __device__ void emit(const float (&o)[8][4], int chunk, int warp) const {
    const int tokens = min(kChunk, seg.count - chunk * kChunk);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const uint32_t low = transpose_matrix(pack_bf16(o[n][0], o[n][1]));
      const uint32_t high = transpose_matrix(pack_bf16(o[n][2], o[n][3]));
      const int t = n * 8 + lane / 4;
      if (t >= tokens) continue;
      __nv_bfloat16* to = p.out + ((static_cast<int64_t>(seg.row) + chunk * kChunk + t) * p.shape.Hv + head) * kD +
                          slab * kSlab + warp * 16 + lane % 4 * 2;
      *reinterpret_cast<uint32_t*>(to) = low;
      *reinterpret_cast<uint32_t*>(to + 8) = high;
    }
  }

  __device__ void outputs(int warp) const {
    constexpr int kAhead = kStages - 1;
    const int thread = warp * 32 + lane;
    if constexpr (kAhead > 0) copy_chunk(0, thread);
    if constexpr (kAhead > 1) copy_chunk(1, thread);
#pragma unroll 1
    for (int c = 0; c < chunks; ++c) {
      if constexpr (kAhead > 0) {
        copy_wait<kAhead - 1>();
        next_chunk();
        copy_chunk(c + kAhead, thread);  // over chunk c - 1, which everybody has left
      } else {
        next_chunk();  // everybody has left the chunk before
        copy_chunk(c, thread);
        copy_wait<0>();
        next_chunk();
      }
      const Stage<kSlab>& in = sh.stages[c % kStages];
      float sum[8][4] = {};
#pragma unroll
      for (int s = 0; s < kD / 16; ++s) {
        const uint4 x = sh.state[c % 2][warp][s][lane];
        const uint32_t a[4] = {x.x, x.y, x.z, x.w};
        multiply_rows(sum, a, in.q, s, 0);
      }
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        const float2 entry = *reinterpret_cast<const float2*>(&in.factors[kEntry][n * 8 + lane % 4 * 2]);
        const float x = kScale * entry.x, y = kScale * entry.y;
        sum[n][0] *= x, sum[n][1] *= y, sum[n][2] *= x, sum[n][3] *= y;
      }
      barrier_sync<64>(1 + warp);
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        const uint4 x = sh.change[warp][s][lane];
        const uint32_t a[4] = {x.x, x.y, x.z, x.w};
        multiply_rows(sum, a, in.weights, s, s);
      }
      emit(sum, c, warp);
    }
    copy_wait<0>();
  }
};

// How many chunks the prompt segments before `index` have; by a whole warp.
__device__ int chunks_before(const SegmentArray& all, int index) {
  int sum = 0;
  for (int i = all.decodes + static_cast<int>(threadIdx.x) % 32; i < index; i += 32)
    sum += (all.data[i].count + kChunk - 1) / kChunk;
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(kAllLanes, sum, mask);
  return sum;
}

template <int kSlab, int kStages>
__global__ void __launch_bounds__(Walk<kSlab, kStages>::kThreads, 1)
    scan_kernel(const __grid_constant__ GdnChunkedParams p) {
  extern __shared__ float4 memory[];
  begin_kernel(p);
  const int index = p.segments.decodes + static_cast<int>(blockIdx.z), head = static_cast<int>(blockIdx.y);
  const Segment seg = p.segments.data[index];
  if (seg.count <= 0) return;
  const ChunkData* data =
      static_cast<const ChunkData*>(p.workspace) + static_cast<int64_t>(chunks_before(p.segments, index)) * p.shape.Hv;
  const Walk<kSlab, kStages> walk{p,
                                  seg,
                                  head,
                                  key_head_of(p.shape, head),
                                  static_cast<int>(blockIdx.x),
                                  data + head,
                                  *reinterpret_cast<Shared<kSlab, kStages>*>(memory)};
  constexpr int kWarps = Walk<kSlab, kStages>::kWarps;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (warp < kWarps)
    walk.carry(warp);
  else
    walk.outputs(warp - kWarps);
}

template <int kSlab, int kStages>
Status launch(cudaStream_t stream, const GdnChunkedParams& p) {
  const dim3 grid(kD / kSlab, static_cast<unsigned>(p.shape.Hv),
                  static_cast<unsigned>(p.segments.count - p.segments.decodes));
  return quire::cuda::launch(stream, "gdn_chunked: scan", scan_kernel<kSlab, kStages>, grid,
                             Walk<kSlab, kStages>::kThreads, sizeof(Shared<kSlab, kStages>), p);
}

}  // namespace

bool wide_scan_has_room(const DeviceLimits& device) {
  return static_cast<int64_t>(sizeof(Shared<64, 3>)) <= device.shared_bytes;
}

int32_t choose_slab(const DeltaShape& shape, int64_t prompts, const DeviceLimits& device) {
  const bool alone = prompts * shape.Hv * (kD / 32) <= device.multiprocessors;
  return !alone && wide_scan_has_room(device) ? 64 : 32;
}

Status launch_chunk_scan(cudaStream_t stream, const GdnChunkedParams& p) {
  QUIRE_TRY(const DeviceLimits device, device_limits());
  const int32_t slab = p.slab != 0 ? p.slab : choose_slab(p.shape, p.segments.count - p.segments.decodes, device);
  // On cards with less shared memory, less or nothing is copied ahead.
  const auto fits = [&](size_t bytes) { return static_cast<int64_t>(bytes) <= device.shared_bytes; };
  static_assert(sizeof(Shared<32, 1>) <= 99 << 10, "every GPU has that");
  if (slab == 64 && wide_scan_has_room(device)) return launch<64, 3>(stream, p);
  if (fits(sizeof(Shared<32, 3>))) return launch<32, 3>(stream, p);
  if (fits(sizeof(Shared<32, 2>))) return launch<32, 2>(stream, p);
  return launch<32, 1>(stream, p);
}

}  // namespace quire::cuda
