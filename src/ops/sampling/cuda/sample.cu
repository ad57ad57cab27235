// The scan over all logits, and the launches.
#include <cuda_runtime.h>

#include "core/cuda/dependent_launch.cuh"
#include "core/cuda/launch.h"
#include "ops/sampling/cuda/race.cuh"
#include "ops/sampling/cuda/select.cuh"

namespace quire::cuda {
namespace {

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
  return x;
}
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

// The maximum of a block, which every lane gets, and, if wanted, the sum of its weights, by fixed trees. NaN is stored
// for a NaN or +infinity.
__device__ __forceinline__ float summarise(const float (&x)[kLogitsPerLane], bool sums, float inverse_temperature,
                                           float* max, float* sum, int lane) {
  float m = x[0];
  bool fine = true;
#pragma unroll
  for (int i = 0; i < kLogitsPerLane; ++i) {
    m = fmaxf(m, x[i]);
    fine &= x[i] <= FLT_MAX;
  }
  m = warp_max(m);
  fine = __all_sync(~0u, fine);
  if (lane == 0) *max = fine ? m : NAN;
  if (!sums) return m;
  const float base = m == -INFINITY ? 0.0f : m;
  float s = 0;
#pragma unroll
  for (int i = 0; i < kLogitsPerLane; ++i) s += weight_of(__fmul_rn(__fsub_rn(x[i], base), inverse_temperature));
  s = warp_sum(s);
  if (lane == 0) *sum = s;
  return m;
}

// The blocks of logits that a warp looks at, one after the other. Those of a row that changes its logits are a case of
// their own, which does not load ahead: both together would need more registers than three blocks of threads may have.
template <bool kModifies>
__device__ __forceinline__ void scan_blocks(const SampleParams& p, const BlockStats& stats, const SampleRow& row, int r,
                                            int first, int lane, int blocks, Race& race) {
  const float* logits = p.logits + r * p.logits_stride;
  const bool draws = row.target < 0 && !(row.temperature < kGreedyBelow), filtered = filters(p, row);
  const float inverse_temperature = draws ? 1.0f / row.temperature : 1.0f;
  float next[kLogitsPerLane];
  if (!kModifies && first < blocks) load_raw(logits, p.vocab, first, lane, 0, next);
#pragma unroll 1
  for (int i = 0; i < kBlocksPerWarp; ++i) {
    const int block = first + i * kScanWarps;
    if (block >= blocks) break;
    float x[kLogitsPerLane];
    if (kModifies) {
      load_raw(logits, p.vocab, block, lane, 0, x);
    } else {
#pragma unroll
      for (int j = 0; j < kLogitsPerLane; ++j) x[j] = next[j];
      if (i + 1 < kBlocksPerWarp && block + kScanWarps < blocks)
        load_raw(logits, p.vocab, block + kScanWarps, lane, 0, next);
    }
    const int64_t at = static_cast<int64_t>(r) * blocks + block;
    if (row.logprobs >= 0) summarise(x, true, 1.0f, stats.raw_max + at, stats.raw_sum + at, lane);
    if (row.target >= 0) continue;  // nothing is drawn
    if (kModifies) {
      bool fine = true;
#pragma unroll
      for (const float v : x) fine &= v <= FLT_MAX;  // what suppression hides still spoils the row
      modify(p, row, block, lane, 0, x);
      if (!fine) x[0] = NAN;
    }
    const float most = summarise(x, draws && filtered, inverse_temperature, stats.max + at, stats.sum + at, lane);
    if (draws && !filtered) race.add(x, most, block, lane);
  }
}

__global__ void __launch_bounds__(kScanWarps * 32, 3)
    scan(const __grid_constant__ SampleParams p, BlockStats stats, int blocks) {
  begin_kernel(p);
  const int r = static_cast<int>(blockIdx.y), lane = threadIdx.x % 32;
  const int first = static_cast<int>(blockIdx.x) * kScanBlocks + static_cast<int>(threadIdx.x) / 32;
  const SampleRow row = p.row[r];
  if ((row.flags & kSampleIdle) != 0) return;
  Race race(p, row);
  if (modifies(p, row))
    scan_blocks<true>(p, stats, row, r, first, lane, blocks, race);
  else
    scan_blocks<false>(p, stats, row, r, first, lane, blocks, race);
  if (row.target >= 0 || row.temperature < kGreedyBelow || filters(p, row)) return;
  const ScoredColumn best = warp_best(race.best);
  const int share = static_cast<int>(blockIdx.x) * kScanWarps + static_cast<int>(threadIdx.x) / 32;
  if (lane == 0) stats.best[static_cast<int64_t>(r) * sample_shares(p.vocab) + share] = best;
}

// A block a range. The list's order means nothing, so threads take tokens in any order; but which tokens find room in a
// list that may fill up does depend on it, so then one thread takes them in turn.
__global__ void __launch_bounds__(256) note_ranges(const __grid_constant__ UpdateHistoryParams p) {
  begin_kernel(p);
  const HistoryUpdate range = p.ranges[blockIdx.x];
  if (range.history < 0) return;
  const TokenHistory& h = p.history;
  int32_t* counts = h.counts + static_cast<int64_t>(range.history) * h.vocab;
  int32_t* seen = h.seen + static_cast<int64_t>(range.history) * h.capacity;
  __shared__ int32_t filled;
  if (threadIdx.x == 0) filled = h.seen_count[range.history];
  __syncthreads();
  if (range.reset != 0) {
    for (int i = threadIdx.x; i < filled; i += blockDim.x) counts[seen[i]] = 0;
    __syncthreads();
    if (threadIdx.x == 0) filled = 0;
    __syncthreads();
  }
  const bool roomy = range.count <= h.capacity - filled;
  __syncthreads();
  if (roomy) {
    for (int i = threadIdx.x; i < range.count; i += blockDim.x) {
      const int32_t token = p.tokens[range.begin + i];
      if (token < 0 || token >= h.vocab) continue;
      const int32_t before = i < range.prompt ? atomicOr(counts + token, kInPrompt) : atomicAdd(counts + token, 1);
      if (before == 0) seen[atomicAdd(&filled, 1)] = token;
    }
  } else if (threadIdx.x == 0) {
    for (int i = 0; i < range.count; ++i) note(h, range.history, p.tokens[range.begin + i], i < range.prompt, filled);
  }
  __syncthreads();
  if (threadIdx.x == 0) h.seen_count[range.history] = filled;
}

}  // namespace

int64_t sample_workspace_bytes(int rows, int vocab) {
  return int64_t{rows} * (4 * int64_t{sizeof(float)} * sample_blocks(vocab) +
                          int64_t{sizeof(unsigned long long)} * sample_shares(vocab));
}

Status launch_sample(cudaStream_t stream, const SampleParams& p, void* workspace) {
  if (p.rows <= 0) return {};
  const int blocks = sample_blocks(p.vocab);
  const int64_t n = static_cast<int64_t>(p.rows) * blocks;
  auto* memory = static_cast<float*>(workspace);
  const BlockStats stats{memory, memory + n, memory + 2 * n, memory + 3 * n,
                         reinterpret_cast<unsigned long long*>(memory + 4 * n)};
  const dim3 grid(static_cast<unsigned>((blocks + kScanBlocks - 1) / kScanBlocks), static_cast<unsigned>(p.rows));
  QUIRE_CHECKED(launch(stream, "sample: scan", scan, grid, kScanWarps * 32, 0, p, stats, blocks));
  return launch_select(stream, p, stats);
}

Status launch_update_history(cudaStream_t stream, const UpdateHistoryParams& p) {
  if (p.range_count <= 0) return {};
  return launch(stream, "update_history", note_ranges, dim3(static_cast<unsigned>(p.range_count)), 256, 0, p);
}

}  // namespace quire::cuda
