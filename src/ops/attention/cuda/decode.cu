// Attention of generated tokens. The query rows of a KV head (its query heads, times the rows of the segment) are the
// N side of the products, eight to a tile, and 16 keys the M side, so that eight query heads fill a tile without
// padding:
//   S^T [16 keys x 8 rows] = K Q^T         A by ldmatrix, B the queries, in registers for the whole part
//   O^T [d x 8 rows]      += V^T P^T       A by ldmatrix.trans, B the probabilities, transposed by movmatrix
// A block of four warps (two with heads of 512) computes one part (256 keys of a sequence and KV head) at a time and
// walks the list of parts with the stride of the grid. A warp takes every fourth (second) block of 16 keys, through a
// ring of stages of its own that only it reads and writes: no barrier while keys stream, and the ring runs ahead over
// the borders of parts.
// E4M3 keys and values become bf16 between their load and the product.
#include <cuda_runtime.h>

#include <algorithm>
#include <climits>

#include "core/cuda/dependent_launch.cuh"
#include "core/cuda/launch.h"
#include "ops/attention/cuda/add_parts.cuh"
#include "ops/attention/cuda/decode_operands.cuh"

namespace quire::cuda {
namespace {

using namespace decode;

struct Item {
  Segment segment;
  const int32_t* table;
  int kv_head, row_tile, first_key, keys;  // keys of the part: [first_key, first_key + keys)
};

__device__ Item find_item(const Job& job, const int32_t* first, int64_t index) {
  const int64_t tiles = index / job.row_tiles;
  const auto part = static_cast<int32_t>(tiles / job.a.kv_heads);
  const int s = segment_of(first, job.a.segments.decodes, part);
  Item item;
  item.segment = job.a.segments.data[s];
  item.table = job.a.segments.tables + static_cast<int64_t>(s) * job.a.segments.pitch;
  item.kv_head = static_cast<int>(tiles % job.a.kv_heads);
  item.row_tile = static_cast<int>(index % job.row_tiles);
  item.first_key = (part - first[s] + first_part(item.segment, job.a.window)) * kPartKeys;
  item.keys = min(kPartKeys, item.segment.position + item.segment.count - item.first_key);
  return item;
}

// The part of a warp in the walk over blocks of keys: which item, which of its blocks is next.
struct Cursor {
  int64_t index;
  int block;  // in the part
  Item item;
};

template <int D, int kTiles, KvFormat kFormat, int kStages>
class Warp {
  using S = Shape<D, kTiles, kFormat, kStages>;
  static constexpr int kWarps = S::kWarps;

 public:
  __device__ __forceinline__ Warp(const Job& j, char* shared, int* p)
      : job(j),
        first(reinterpret_cast<int32_t*>(shared + S::kFirstAt)),
        stats(reinterpret_cast<float2*>(shared + S::kStatsAt)),
        ring(shared),
        places(p),
        stages(shared_address(shared) + threadIdx.x / 32 * S::kStages * S::kStageBytes),
        queries(shared_address(shared) + S::kQueriesAt),
        warp(threadIdx.x / 32),
        lane(threadIdx.x % 32),
        operands(threadIdx.x % 32) {
    items = static_cast<int64_t>(first[job.a.segments.decodes]) * job.a.kv_heads * job.row_tiles;
    if (items > job.max_items) items = job.max_items;
#pragma unroll
    for (int k = 0; k < 2; ++k) query_at[k] = queries + lane % 8 * D * 2 + ((4 * k + lane / 8) ^ (lane % 8)) * 16;
  }

  // The block's first item; none if it has no work.
  __device__ __forceinline__ Item find_first() const {
    return blockIdx.x < items ? find_item(job, first, blockIdx.x) : Item{};
  }
  __device__ __forceinline__ void run(Item item) {
    if (blockIdx.x >= items) return;
    ahead = {blockIdx.x, warp, item};
#pragma unroll
    for (int i = 0; i < S::kStages - 1; ++i) fetch_next();
    load_queries(item);
    store_queries();
    __syncthreads();
    for (int64_t index = blockIdx.x; index < items; index += gridDim.x) {
      begin(item);
#pragma unroll 1
      for (int block = warp; block * kBlockTokens < item.keys; block += kWarps) {
        fetch_next();
        wait_copies<S::kStages - 1>();
        __syncwarp();
        compute(stages + (taken % S::kStages) * S::kStageBytes, item, block * kBlockTokens);
        ++taken;
        __syncwarp();
      }
      const bool more = index + gridDim.x < items;
      if (more) {
        item = find_item(job, first, index + gridDim.x);
        load_queries(item);
      }
      finish(index);
      if (more) store_queries();
      __syncthreads();
    }
  }

 private:
  // Fetches this warp's next block of keys and values, if there is one; tokens past the sequence become zeros.
  // A group of copies is committed in any case, so that waiting can count.
  __device__ __forceinline__ void fetch_next() {
    while (ahead.index < items && ahead.block * kBlockTokens >= ahead.item.keys) {
      ahead.index += gridDim.x;
      ahead.block = warp;
      if (ahead.index < items) ahead.item = find_item(job, first, ahead.index);
    }
    if (ahead.index < items) {
      const int key = ahead.item.first_key + ahead.block * kBlockTokens;
      const int valid = ahead.item.keys - ahead.block * kBlockTokens;  // tokens; may exceed the block
      const int64_t from = ahead.item.table[key / kBlockTokens] * job.a.kv.block_bytes +
                           static_cast<int64_t>(ahead.item.kv_head) * S::kBlockBytes;
      const uint32_t to = stages + (fetched % S::kStages) * S::kStageBytes;
      const char* k = static_cast<const char*>(job.a.kv.k) + from;
      const char* v = static_cast<const char*>(job.a.kv.v) + from;
      if (valid >= kBlockTokens) {
#pragma unroll
        for (int i = 0; i < S::kBlockBytes / 512; ++i) {
          copy_async16(to + lane * 16 + i * 512, k + lane * 16 + i * 512, true);
          copy_async16(to + lane * 16 + i * 512 + S::kBlockBytes, v + lane * 16 + i * 512, true);
        }
      } else {
#pragma unroll 1
        for (int i = 0; i < S::kBlockBytes / 512; ++i) {
          const int chunk = i * 32 + lane;  // of 16 bytes; its row is its token
          const bool there = chunk / S::kRowChunks % kBlockTokens < valid;
          copy_async16(to + chunk * 16, k + chunk * 16, there);
          copy_async16(to + S::kBlockBytes + chunk * 16, v + chunk * 16, there);
        }
      }
      if constexpr (kFormat == KvFormat::kE4m3) {
        if (lane < 2)
          copy_async16(to + lane * S::kBlockBytes + kBlockTokens * D, (lane == 0 ? k : v) + kBlockTokens * D, true);
      }
      ahead.block += kWarps;
      ++fetched;
    }
    commit_copies();
  }

  // The item's queries, 16 bytes at a time over the whole block; in registers until the block is done with the last
  // ones.
  __device__ __forceinline__ void load_queries(const Item& item) {
    const int group = job.a.q_heads / job.a.kv_heads, rows = item.segment.count * group;
#pragma unroll
    for (int i = 0; i < kQueryChunks; ++i) {
      const int chunk = i * kWarps * 32 + static_cast<int>(threadIdx.x), row = chunk / (D / 8);
      const int r = item.row_tile * S::kRows + row;
      query[i] = make_uint4(0, 0, 0, 0);
      if (row >= S::kRows || r >= rows) continue;
      const int64_t token = item.segment.row + r / group;
      const int head = item.kv_head * group + r % group;
      query[i] = *reinterpret_cast<const uint4*>(job.a.q + token * job.a.q_stride + static_cast<int64_t>(head) * D +
                                                 chunk % (D / 8) * 8);
    }
  }
  __device__ __forceinline__ void store_queries() {
#pragma unroll
    for (int i = 0; i < kQueryChunks; ++i) {
      const int chunk = i * kWarps * 32 + static_cast<int>(threadIdx.x), row = chunk / (D / 8), c = chunk % (D / 8);
      if (row >= S::kRows) continue;
      const uint32_t to = queries + row * D * 2 + (c ^ (row % 8)) * 16;
      asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(query[i].x), "r"(query[i].y),
                   "r"(query[i].z), "r"(query[i].w)
                   : "memory");
    }
  }

  // An item begins: the positions of the rows whose scores this lane will hold, and sums of nothing.
  __device__ __forceinline__ void begin(const Item& item) {
    const int group = job.a.q_heads / job.a.kv_heads, rows = item.segment.count * group;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int mine = item.row_tile * S::kRows + t * 8 + 2 * (lane % 4) + c;
        position[t][c] = mine < rows ? item.segment.position + mine / group : -1;
        max[t][c] = -INFINITY;
        total[t][c] = 0.0f;
      }
#pragma unroll
      for (int i = 0; i < D / 16; ++i) out[t][i][0] = out[t][i][1] = out[t][i][2] = out[t][i][3] = 0.0f;
    }
  }

  // One block of 16 keys, the first of which is `offset` of the part. Matrices are loaded several at a time, so that
  // their latencies overlap: a scheduler has one or two warps only.
  __device__ __forceinline__ void compute(uint32_t stage, const Item& item, int offset) {
    constexpr int kAhead = kTiles == 1 ? 4 : 2;  // steps of 16 columns
    float score[kTiles][2][4] = {};              // two sums, over even and odd steps: half the latency
    const auto block = operands.of_block(stage, item.keys - offset);
#pragma unroll
    for (int base = 0; base < D / 16; base += kAhead) {
      uint32_t q[kTiles][kAhead / 2][4], keys[kAhead][4];
      block.load_keys(keys, base);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int i = 0; i < kAhead / 2; ++i) {
          const int pair = base / 2 + i;  // of steps: 64 bytes, so that every second one is 128 further
          load_matrices(q[t][i], query_at[pair % 2] + t * 8 * D * 2 + pair / 2 * 128);
        }
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
#pragma unroll
        for (int t = 0; t < kTiles; ++t)
          mma_bf16(score[t][i % 2], keys[i], q[t][i / 2][i % 2 * 2], q[t][i / 2][i % 2 * 2 + 1]);
      }
    }
    uint32_t probability[kTiles][2];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) softmax(t, score[t], item.first_key + offset, probability[t]);
#pragma unroll
    for (int base = 0; base < D / 16; base += kAhead) {
      uint32_t values[kAhead][4];
      block.load_values(values, base);
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
#pragma unroll
        for (int t = 0; t < kTiles; ++t) mma_bf16(out[t][base + i], values[i], probability[t][0], probability[t][1]);
      }
    }
  }

  // Scores of tile t (keys lane / 4 and lane / 4 + 8, rows 2 (lane % 4) and the next) to probabilities as the B
  // operand; the running maximum, sum and output follow.
  __device__ __forceinline__ void softmax(int t, const float (&score)[2][4], int key, uint32_t (&probability)[2]) {
    const float unit = job.a.scale * kLog2e;
    const int window = job.a.window > 0 ? job.a.window : INT_MAX;
    float s[4], alpha[2];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = key + lane / 4 + i / 2 * 8;
      const int below = position[t][i % 2] - at;  // how far the key is before the row
      s[i] = below >= 0 && below < window ? __fmul_rn(__fadd_rn(score[0][i], score[1][i]), unit) : -INFINITY;
    }
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float m = fmaxf(s[c], s[c + 2]);
#pragma unroll
      for (int step = 4; step < 32; step *= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, step));
      m = fmaxf(m, max[t][c]);
      const float base = m == -INFINITY ? 0.0f : m;  // no key yet: everything stays 0
      alpha[c] = exp2_approx(max[t][c] - base);
      max[t][c] = m;
      s[c] = exp2_approx(s[c] - base);
      s[c + 2] = exp2_approx(s[c + 2] - base);
      total[t][c] = fmaf(total[t][c], alpha[c], s[c] + s[c + 2]);
    }
    // Multiplying by exactly 1 changes nothing: skipped when no row of the tile moves.
    if (__any_sync(~0u, alpha[0] != 1.0f || alpha[1] != 1.0f)) {
#pragma unroll
      for (int i = 0; i < D / 16; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) out[t][i][j] *= alpha[j % 2];
      }
    }
    probability[0] = transpose_matrix(pack_bf16(s[0], s[1]));
    probability[1] = transpose_matrix(pack_bf16(s[2], s[3]));
  }

  // Adds the warps' results in their order and writes the part's, a tile at a time. A warp leaves its own in the
  // stage that it would fill next; the caller's barrier comes before it does.
  __device__ __forceinline__ void finish(int64_t index) {
    char* mine = ring + (warp * S::kStages + static_cast<int>(fetched % S::kStages)) * S::kStageBytes;
    if (lane == 0) places[warp] = static_cast<int>(mine - ring);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      if (t > 0) __syncthreads();
#pragma unroll
      for (int c = 0; c < 2; ++c) {
#pragma unroll
        for (int step = 4; step < 32; step *= 2) total[t][c] += __shfl_xor_sync(~0u, total[t][c], step);
        if (lane < 4) stats[warp * S::kRows + t * 8 + 2 * lane + c] = make_float2(max[t][c], total[t][c]);
      }
#pragma unroll
      for (int i = 0; i < D / 16; ++i) {
        auto* to = reinterpret_cast<float2*>(mine) + ((16 * i + lane / 4) * 8 + 2 * (lane % 4)) / 2;
        to[0] = make_float2(out[t][i][0], out[t][i][1]);
        to[8 * 8 / 2] = make_float2(out[t][i][2], out[t][i][3]);
      }
      __syncthreads();
      add_warps(t, index);
    }
  }

  // Tile t of the part, four rows of a column at a time.
  __device__ __forceinline__ void add_warps(int t, int64_t index) {
    const int first_row = threadIdx.x % 2 * 4;
    float factor[kWarps][4];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const float2* stat = stats + t * 8 + first_row + r;
      float m = -INFINITY, l = 0.0f;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) m = fmaxf(m, stat[w * S::kRows].x);
      const float base = m == -INFINITY ? 0.0f : m;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        factor[w][r] = exp2_approx(stat[w * S::kRows].x - base);
        l = fmaf(stat[w * S::kRows].y, factor[w][r], l);
      }
      if (threadIdx.x < 2) job.stats[index * S::kRows + t * 8 + first_row + r] = make_float2(m, l);
    }
    auto* to = reinterpret_cast<float4*>(job.sums + (index * kTiles + t) * D * 8);
#pragma unroll
    for (int i = 0; i < D * 2; i += kWarps * 32) {
      const int at = i + static_cast<int>(threadIdx.x);
      float4 sum = {0, 0, 0, 0};
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        const float4 x = *reinterpret_cast<const float4*>(ring + places[w] + at * 16);
        sum.x = fmaf(x.x, factor[w][0], sum.x);
        sum.y = fmaf(x.y, factor[w][1], sum.y);
        sum.z = fmaf(x.z, factor[w][2], sum.z);
        sum.w = fmaf(x.w, factor[w][3], sum.w);
      }
      to[at] = sum;
    }
  }

  static constexpr int kQueryChunks = (S::kRows * D / 8 + kWarps * 32 - 1) / (kWarps * 32);
  const Job& job;
  const int32_t* first;
  float2* stats;
  char* ring;
  int* places;  // of the warps' sums within the ring
  const uint32_t stages, queries;
  const int warp, lane;
  const BlockOperands<D, kFormat> operands;
  int64_t items;
  Cursor ahead;
  uint32_t fetched = 0, taken = 0;
  uint32_t query_at[2];
  uint4 query[kQueryChunks];
  int position[kTiles][2];
  float max[kTiles][2], total[kTiles][2], out[kTiles][D / 16][4];
};

template <int D, int kTiles, KvFormat kFormat, int kStages>
__global__ void __launch_bounds__(Shape<D, kTiles, kFormat, kStages>::kWarps * 32,
                                  Shape<D, kTiles, kFormat, kStages>::kResident)
    decode_parts_kernel(const __grid_constant__ Job job) {
  extern __shared__ __align__(1024) char shared[];
  __shared__ int places[Shape<D, kTiles, kFormat, kStages>::kWarps];
  // Segments and tables are older than the step's kernels.
  touch(job);
  list_work(job.a.segments.data, job.a.segments.decodes,
            reinterpret_cast<int32_t*>(shared + Shape<D, kTiles, kFormat, kStages>::kFirstAt),
            [&](const Segment& s) { return parts_of(s, job.a.window); });
  Warp<D, kTiles, kFormat, kStages> warp(job, shared, places);
  const Item item = warp.find_first();
  // In this order: the kernel that adds the parts reads gates before it waits.
  wait_for_previous_kernels();
  let_next_kernel_start();
  warp.run(item);
}

struct Plan {
  int tiles;      // template argument kTiles
  int row_tiles;  // how often a part's keys are walked
  int64_t items;
};
Plan plan(const AttentionParams& p, const DecodeBounds& b) {
  const int rows = b.rows * (p.q_heads / p.kv_heads);
  const int tiles = rows > 8 && p.head_size < kWideHeadSize ? 2 : 1;  // two of the widest are more sums than registers
  const int row_tiles = (rows + 8 * tiles - 1) / (8 * tiles);
  return {tiles, row_tiles, b.max_parts * p.kv_heads * row_tiles};
}
int64_t stats_bytes(const Plan& plan) {
  return (plan.items * plan.tiles * 8 * static_cast<int64_t>(sizeof(float2)) + 255) / 256 * 256;
}

// Stages that help most where there is shared memory for them, and those that every GPU has room for.
template <int D, int kTiles, KvFormat kFormat>
inline constexpr int kMostStages = kFormat == KvFormat::kBf16 ? (D >= 256 ? 3 : 4) : (D >= 256 && kTiles == 1 ? 2 : 3);
template <int D, KvFormat kFormat>
inline constexpr int kLeastStages = D >= 256                     ? 1
                                    : D == 128                   ? 2
                                    : kFormat == KvFormat::kBf16 ? 4
                                                                 : 3;

template <int D, int kTiles, KvFormat kFormat, int kStages = kMostStages<D, kTiles, kFormat>>
Status launch_parts(cudaStream_t stream, const Job& job) {
  QUIRE_TRY(const DeviceLimits device, device_limits());
  using S = Shape<D, kTiles, kFormat, kStages>;
  const int shared = S::shared_bytes(job.a.segments.decodes);
  constexpr int kLeast = kLeastStages<D, kFormat>;
  static_assert(Shape<D, kTiles, kFormat, kLeast>::shared_bytes(kMaxAttentionSegments) <= 98 << 10,
                "every GPU has that");
  if constexpr (kStages > kLeast) {
    constexpr int kFewer = D >= 256 ? kStages - 1 : kLeast;
    if (shared > device.shared_bytes) return launch_parts<D, kTiles, kFormat, kFewer>(stream, job);
  }
  constexpr int kThreads = S::kWarps * 32;
  const auto kernel = decode_parts_kernel<D, kTiles, kFormat, kStages>;
  QUIRE_CHECKED(allow_shared_memory(reinterpret_cast<const void*>(kernel), "decode_attention", shared));
  int resident = 0;
  QUIRE_CHECKED(
      check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, kThreads, static_cast<size_t>(shared)),
            "decode_attention: occupancy"));
  const auto grid = static_cast<unsigned>(
      std::max<int64_t>(1, std::min<int64_t>(job.max_items, int64_t{device.multiprocessors} * std::max(resident, 1))));
  return quire::cuda::launch(stream, "decode_attention", kernel, dim3(grid), kThreads, shared, job);
}

template <int D, int kTiles, KvFormat kFormat>
Status launch(cudaStream_t stream, const AttentionParams& p, const DecodeBounds& bounds, void* workspace) {
  const Plan plan = cuda::plan(p, bounds);
  auto* stats = static_cast<float2*>(workspace);
  auto* sums = reinterpret_cast<float*>(static_cast<char*>(workspace) + stats_bytes(plan));
  const Job job{p, plan.row_tiles, plan.items, sums, stats};
  QUIRE_CHECKED((launch_parts<D, kTiles, kFormat>(stream, job)));
  const dim3 adding(static_cast<unsigned>(p.kv_heads * (D / kColumns)), static_cast<unsigned>(plan.row_tiles * kTiles),
                    static_cast<unsigned>(p.segments.decodes));
  return quire::cuda::launch(stream, "decode_attention: adding parts", add_parts<D, kTiles>, adding, kAddThreads,
                             (int64_t{p.segments.decodes} + 1) * static_cast<int64_t>(sizeof(int32_t)), job);
}

template <KvFormat kFormat>
Status launch(cudaStream_t stream, const AttentionParams& p, const DecodeBounds& bounds, void* workspace) {
  const bool two = plan(p, bounds).tiles == 2;
  const auto run = p.head_size == 64    ? (two ? launch<64, 2, kFormat> : launch<64, 1, kFormat>)
                   : p.head_size == 128 ? (two ? launch<128, 2, kFormat> : launch<128, 1, kFormat>)
                   : p.head_size == 256 ? (two ? launch<256, 2, kFormat> : launch<256, 1, kFormat>)
                                        : launch<kWideHeadSize, 1, kFormat>;
  return run(stream, p, bounds, workspace);
}

}  // namespace

int64_t decode_attention_workspace_bytes(const AttentionParams& p, const DecodeBounds& bounds) {
  if (p.kv_heads <= 0 || bounds.max_parts <= 0) return 0;
  const Plan plan = cuda::plan(p, bounds);
  return stats_bytes(plan) + plan.items * plan.tiles * 8 * p.head_size * static_cast<int64_t>(sizeof(float));
}

Status launch_decode_attention(cudaStream_t stream, const AttentionParams& p, const DecodeBounds& bounds,
                               void* workspace) {
  if (p.segments.decodes <= 0 || bounds.max_parts <= 0) return {};
  return p.kv.format == KvFormat::kE4m3 ? launch<KvFormat::kE4m3>(stream, p, bounds, workspace)
                                        : launch<KvFormat::kBf16>(stream, p, bounds, workspace);
}

}  // namespace quire::cuda
