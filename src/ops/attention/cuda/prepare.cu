// attention_prepare: a block of 8 warps takes one row, a warp one head at a time. Where there are few rows, several
// blocks share one's heads.
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "core/cuda/dependent_launch.cuh"
#include "core/cuda/launch.h"
#include "ops/attention/cuda/attention.h"
#include "ops/attention/cuda/ptx.cuh"
#include "ops/attention/scale.h"

namespace quire::cuda {
namespace {

constexpr int kWarps = 8;

// What a lane holds of a head, D / 32 adjacent elements: as they lie in memory, ...
template <int kPerLane>
struct Raw {
  uint32_t pairs[kPerLane / 2];

  __device__ void load(const bf16* from, int lane) {
    const auto* at = reinterpret_cast<const uint32_t*>(from) + lane * (kPerLane / 2);
    if constexpr (kPerLane >= 8) {
#pragma unroll
      for (int i = 0; i < kPerLane / 2; i += 4)
        *reinterpret_cast<uint4*>(pairs + i) = *reinterpret_cast<const uint4*>(at + i);
    } else if constexpr (kPerLane == 4) {
      *reinterpret_cast<uint2*>(pairs) = *reinterpret_cast<const uint2*>(at);
    } else {
      pairs[0] = *at;
    }
  }
};
// ... and as floats.
template <int kPerLane>
struct Part {
  float x[kPerLane];

  __device__ void load(const Raw<kPerLane>& raw) {
#pragma unroll
    for (int i = 0; i < kPerLane / 2; ++i) {
      x[2 * i] = low_bf16(raw.pairs[i]);
      x[2 * i + 1] = high_bf16(raw.pairs[i]);
    }
  }
  // place(i): where elements i to i + 7 go, or as many as there are.
  template <class Place>
  __device__ void store(Place&& place) const {
    uint32_t raw[kPerLane / 2];
#pragma unroll
    for (int i = 0; i < kPerLane / 2; ++i) raw[i] = pack_bf16(x[2 * i], x[2 * i + 1]);
    bf16* const to = place(0);
    if constexpr (kPerLane >= 8) {
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<uint4*>(raw);
#pragma unroll
      for (int i = 8; i < kPerLane; i += 8)
        *reinterpret_cast<uint4*>(place(i)) = *reinterpret_cast<uint4*>(raw + i / 2);
    } else if constexpr (kPerLane == 4) {
      *reinterpret_cast<uint2*>(to) = *reinterpret_cast<uint2*>(raw);
    } else {
      *reinterpret_cast<uint32_t*>(to) = raw[0];
    }
  }
};

// Which segment a row belongs to, or -1; by a whole warp.
__device__ int find_segment(const SegmentArray& s, int row) {
  for (int base = 0; base < s.count; base += 32) {
    const int i = base + static_cast<int>(threadIdx.x % 32);
    bool mine = false;
    if (i < s.count) {
      const Segment segment = s.data[i];
      mine = row >= segment.row && row < segment.row + segment.count;
    }
    const unsigned found = __ballot_sync(~0u, mine);
    if (found != 0) return base + __ffs(static_cast<int>(found)) - 1;
  }
  return -1;
}

template <int D>
__device__ void rms_norm(Part<D / 32>& p, const float* weight, float eps, int lane) {
  float sum = 0;
#pragma unroll
  for (const float v : p.x) sum = fmaf(v, v, sum);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  const float inv = 1.0f / sqrtf(sum / static_cast<float>(D) + eps);
#pragma unroll
  for (int i = 0; i < D / 32; ++i) p.x[i] = p.x[i] * inv * weight[lane * (D / 32) + i];
}

// Rotates the leading n_rot elements; the head passes through `head`, the warp's [D] of shared memory, because
// partners lie in other lanes.
template <int D>
__device__ void rotate(Part<D / 32>& p, const AttentionPrepareParams& a, const float2* turn, float* head, int lane) {
  constexpr int kPerLane = D / 32;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) head[lane * kPerLane + i] = p.x[i];
  __syncwarp();
  const int half = a.n_rot / 2;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int c = lane * kPerLane + i;
    if (c >= a.n_rot) continue;
    const bool second = a.halves ? c >= half : c % 2 == 1;
    const int partner = a.halves ? (second ? c - half : c + half) : c ^ 1;
    const float2 t = turn[a.halves ? (second ? c - half : c) : c / 2];  // cosine, sine
    const float other = head[partner];
    p.x[i] = second ? fmaf(other, t.y, p.x[i] * t.x) : fmaf(-other, t.y, p.x[i] * t.x);
  }
  __syncwarp();
}

// A token's keys or values into an E4M3 cache: `to` is the block's head. In a chunk columns stand in another order, so
// the head passes through `head` as well.
template <int D>
__device__ void store_e4m3(const Part<D / 32>& p, uint8_t* to, int slot, float* head, int lane) {
  constexpr int kPerLane = D / 32;
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    largest = max(largest, __float_as_uint(p.x[i]) & 0x7fffffffu);
    head[lane * kPerLane + i] = p.x[i];
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) largest = max(largest, __shfl_xor_sync(~0u, largest, step));
  __syncwarp();
  const uint32_t scale = attention::choose_scale(largest);
  const float inverse = attention::inverse_scale_of(scale);
  const int first = lane * kPerLane, chunk = first / kChunkColumns * kChunkColumns, byte = first % kChunkColumns;
  auto* const at = reinterpret_cast<uint16_t*>(to + kv_chunk_offset(slot, chunk) + byte);
#pragma unroll
  for (int i = 0; i < kPerLane; i += 2) {
    const float2 pair = {head[chunk + kv_chunk_column(byte + i)] * inverse,
                         head[chunk + kv_chunk_column(byte + i + 1)] * inverse};
    at[i / 2] = __nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, __NV_E4M3);
  }
  if (lane == 0) to[kBlockTokens * D + slot] = static_cast<uint8_t>(scale);
  __syncwarp();
}

// Heads are numbered q, then gates (if they are to be copied), then k, then v.
struct Source {
  const bf16* from;
  int head;
  enum Kind { kQuery, kGate, kKey, kValue } kind;
};
template <int D>
__device__ Source source_of(const AttentionPrepareParams& a, int64_t row, int h) {
  const int gates = a.gated && a.gate != nullptr ? a.q_heads : 0, pitch = a.gated ? 2 * D : D;
  if (h < a.q_heads) return {a.q_proj + row * a.q_stride + h * pitch, h, Source::kQuery};
  h -= a.q_heads;
  if (h < gates) return {a.q_proj + row * a.q_stride + h * pitch + D, h, Source::kGate};
  h -= gates;
  if (h < a.kv_heads) return {a.k_proj + row * a.k_stride + h * D, h, Source::kKey};
  h -= a.kv_heads;
  return {a.v_proj + row * a.v_stride + h * D, h, Source::kValue};
}

template <int D, KvFormat kFormat>
__global__ void __launch_bounds__(kWarps * 32) prepare(const __grid_constant__ AttentionPrepareParams a) {
  begin_kernel(a);
  constexpr int kPerLane = D / 32;
  __shared__ float2 turn[D / 2];
  __shared__ float shared_heads[kWarps][D];
  const int row = static_cast<int>(blockIdx.x), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int begin = static_cast<int>(blockIdx.y) * kWarps + warp, step = static_cast<int>(gridDim.y) * kWarps;
  const int heads = a.q_heads * (a.gated && a.gate != nullptr ? 2 : 1) + 2 * a.kv_heads;
  // Loaded before anything is waited for; later heads while the one before is computed.
  Raw<kPerLane> raw;
  if (begin < heads) raw.load(source_of<D>(a, row, begin).from, lane);
  const int index = find_segment(a.segments, row);
  if (index < 0) return;  // the same for all warps
  const Segment segment = a.segments.data[index];
  const int position = segment.position + row - segment.row;
  for (int j = threadIdx.x; j < a.n_rot / 2; j += blockDim.x) {
    float s, c;
    const int by = a.coordinates == nullptr ? position : a.coordinates[3 * static_cast<int64_t>(row) + a.axes[j]];
    sincosf(static_cast<float>(by) * a.inv_freq[j], &s, &c);
    turn[j] = {c * a.magnitude, s * a.magnitude};
  }
  __syncthreads();

  const int slot = position % kBlockTokens, first = lane * kPerLane;
  const int64_t block =
      a.segments.tables[static_cast<int64_t>(index) * a.segments.pitch + position / kBlockTokens] * a.kv.block_bytes;
  for (int h = begin; h < heads; h += step) {
    const Source source = source_of<D>(a, row, h);
    Part<kPerLane> p;
    p.load(raw);
    if (h + step < heads) raw.load(source_of<D>(a, row, h + step).from, lane);
    const float* const norm = source.kind == Source::kQuery   ? a.q_norm
                              : source.kind == Source::kKey   ? a.k_norm
                              : source.kind == Source::kValue ? a.v_norm
                                                              : nullptr;
    if (norm != nullptr) rms_norm<D>(p, norm, a.eps, lane);
    if (source.kind == Source::kQuery || source.kind == Source::kKey) rotate<D>(p, a, turn, shared_heads[warp], lane);
    if (source.kind == Source::kQuery || source.kind == Source::kGate) {
      bf16* const in_row = (source.kind == Source::kQuery ? a.q : a.gate) +
                           (static_cast<int64_t>(row) * a.q_heads + source.head) * D + first;
      p.store([&](int i) { return in_row + i; });
      continue;
    }
    auto* const to = static_cast<uint8_t*>(source.kind == Source::kKey ? a.kv.k : a.kv.v) + block +
                     source.head * kv_head_bytes(kFormat, D);
    if constexpr (kFormat == KvFormat::kE4m3) {
      store_e4m3<D>(p, to, slot, shared_heads[warp], lane);
    } else {
      p.store([&](int i) { return reinterpret_cast<bf16*>(to) + kv_offset(slot, first + i); });
    }
  }
}

}  // namespace

Status launch_attention_prepare(cudaStream_t stream, const AttentionPrepareParams& p) {
  if (p.rows <= 0 || p.segments.count <= 0) return {};
  QUIRE_TRY(const DeviceLimits device, device_limits());
  const int heads = p.q_heads * (p.gated && p.gate != nullptr ? 2 : 1) + 2 * p.kv_heads,
            most = (heads + kWarps - 1) / kWarps;
  const int blocks = std::clamp(2 * device.multiprocessors / p.rows, 1, most);  // for a row
  const bool narrow = p.kv.format == KvFormat::kE4m3;
  constexpr KvFormat kWide = KvFormat::kBf16, kNarrow = KvFormat::kE4m3;
  return launch(stream, "attention_prepare",
                p.head_size == 64    ? (narrow ? prepare<64, kNarrow> : prepare<64, kWide>)
                : p.head_size == 128 ? (narrow ? prepare<128, kNarrow> : prepare<128, kWide>)
                : p.head_size == 256 ? (narrow ? prepare<256, kNarrow> : prepare<256, kWide>)
                                     : (narrow ? prepare<kWideHeadSize, kNarrow> : prepare<kWideHeadSize, kWide>),
                dim3(static_cast<unsigned>(p.rows), static_cast<unsigned>(blocks)), kWarps * 32, 0, p);
}

}  // namespace quire::cuda
