// The second kernel of decode attention: adds the parts of every row.
#pragma once

#include "core/cuda/dependent_launch.cuh"
#include "ops/attention/cuda/decode.cuh"

namespace quire::cuda::decode {

// Adds the parts of eight rows (one tile) and 64 columns: four groups of threads take every fourth part each,
// ascending, and are added in ascending order. A thread holds four rows of a column.
inline constexpr int kGroups = 4, kColumns = 64, kAddThreads = kGroups * kColumns * 2;
inline constexpr int kChunkParts = kAddThreads / 8;
inline constexpr int kAhead = 4;  // parts that a thread asks for before their weights are known

template <int D, int kTiles>
__global__ void __launch_bounds__(kAddThreads, 2) add_parts(const __grid_constant__ Job job) {
  let_next_kernel_start();
  extern __shared__ int32_t first[];
  __shared__ float weights[kChunkParts][8], totals[kAddThreads / 32][8], row_max[8];
  __shared__ float4 sums[kGroups][kColumns * 2];
  const AttentionParams& a = job.a;
  const int s = static_cast<int>(blockIdx.z), tile = static_cast<int>(blockIdx.y), warp = threadIdx.x / 32;
  const int kv_head = static_cast<int>(blockIdx.x) / (D / kColumns);
  const int column = static_cast<int>(blockIdx.x) % (D / kColumns) * kColumns;
  const int group = a.q_heads / a.kv_heads;
  const Segment segment = a.segments.data[s];
  if (tile * 8 >= segment.count * group) return wait_for_previous_kernels();
  // The parts before the segment's.
  list_work(a.segments.data, s, first, [&](const Segment& x) { return parts_of(x, a.window); });
  // Parts are numbered from the beginning of the sequence: what is added to what, and in which order, does not depend
  // on where the window of another row of the segment begins.
  const int begin = first_part(segment, a.window), parts = begin + parts_of(segment, a.window);
  const int origin = begin / kChunkParts * kChunkParts;
  const auto place = [&](int part) {  // of the tile in part `part`
    const int64_t item = ((static_cast<int64_t>(first[s]) + part - begin) * a.kv_heads + kv_head) * job.row_tiles;
    return (item + tile / kTiles) * kTiles + tile % kTiles;
  };
  // Everything that can be loaded early is (what came before the parts has ended): the block is a chain of latencies
  // and little else.
  static_assert(kAddThreads == 8 * kColumns, "a thread finishes one element");
  const int row = threadIdx.x / kColumns, c = threadIdx.x % kColumns, packed = tile * 8 + row;
  const bool real = packed < segment.count * group;
  const int64_t r = segment.row + packed / group;
  const int head = kv_head * group + packed % group;
  float gate = 0;
  if (real && a.gate != nullptr)
    gate = low_bf16(a.gate[r * a.gate_stride + head * a.gate_head_stride + column + c].bits);
  wait_for_previous_kernels();
  const int mine = threadIdx.x / (kColumns * 2), at = threadIdx.x % (kColumns * 2), rows = at % 2 * 4;
  const auto sums_of = [&](int part) {
    return reinterpret_cast<const float4*>(job.sums)[place(part) * (D * 2) + column * 2 + at];
  };
  const int my_part = threadIdx.x / 8, my_row = threadIdx.x % 8;  // of each chunk of parts
  const auto is_part = [&](int part) { return part >= begin && part < parts; };
  float2 stat = make_float2(-INFINITY, 0.0f);
  if (is_part(origin + my_part)) stat = job.stats[place(origin + my_part) * 8 + my_row];
  float4 ahead[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i)
    if (const int p = origin + mine + i * kGroups; is_part(p)) ahead[i] = sums_of(p);

  float m = stat.x;
  for (int p = origin + my_part + kChunkParts; p < parts; p += kChunkParts)
    m = fmaxf(m, job.stats[place(p) * 8 + my_row].x);
  m = fmaxf(m, __shfl_xor_sync(~0u, m, 8));
  m = fmaxf(m, __shfl_xor_sync(~0u, m, 16));
  if (threadIdx.x % 32 < 8) totals[warp][my_row] = m;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kAddThreads / 32; ++w) m = fmaxf(m, totals[w][my_row]);

  const float base_max = m == -INFINITY ? 0.0f : m;  // a row of padding has no key
  if (threadIdx.x < 8) row_max[my_row] = base_max;
  float4 sum = {0, 0, 0, 0};
  float total = 0;
  const auto take = [&](const float4& x, int part, int base) {
    const float4 w = *reinterpret_cast<const float4*>(&weights[part - base][rows]);
    sum.x = fmaf(w.x, x.x, sum.x);
    sum.y = fmaf(w.y, x.y, sum.y);
    sum.z = fmaf(w.z, x.z, sum.z);
    sum.w = fmaf(w.w, x.w, sum.w);
  };
  for (int base = origin; base < parts; base += kChunkParts) {
    __syncthreads();
    if (const int p = base + my_part; is_part(p)) {
      if (base > origin) stat = job.stats[place(p) * 8 + my_row];
      const float w = exp2_approx(stat.x - base_max);
      weights[p - base][my_row] = w;
      total = fmaf(w, stat.y, total);
    }
    __syncthreads();
    const int end = min(parts, base + kChunkParts);
    int p = base + mine;
    if (base == origin) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i, p += kGroups)
        if (p >= begin && p < end) take(ahead[i], p, base);
      while (p < begin) p += kGroups;
    }
#pragma unroll 8
    for (; p < end; p += kGroups) take(sums_of(p), p, base);
  }
  total += __shfl_xor_sync(~0u, total, 8);
  total += __shfl_xor_sync(~0u, total, 16);
  if (threadIdx.x % 32 < 8) totals[warp][my_row] = total;
  sums[mine][at] = sum;
  __syncthreads();

  if (!real) return;
  float x = 0, l = 0;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) x += reinterpret_cast<const float*>(sums[g])[c * 8 + row];
#pragma unroll
  for (int w = 0; w < kAddThreads / 32; ++w) l += totals[w][row];
  if (a.sinks != nullptr) l += exp2_approx(fmaf(a.sinks[head], kLog2e, -row_max[row]));
  x = __fdividef(x, l);
  if (a.gate != nullptr) x *= sigmoid(gate);
  a.out[r * a.out_stride + static_cast<int64_t>(head) * D + column + c].bits =
      static_cast<uint16_t>(pack_bf16(x, 0.0f));
}

}  // namespace quire::cuda::decode
