// Attention of prompt chunks, and its kernel for Hopper (sm_90a). A block computes 128 rows (token, query head) of one
// segment and KV head: two warpgroups multiply 64 rows each, a warp of a third brings tiles of 64 keys and values by
// bulk copies into a ring; of an E4M3 cache, all of the third bring them through registers, as bf16.
//   S [64 x 64] = Q K^T     wgmma, both from shared memory
//   O [64 x d] += P V       wgmma, P from registers
// The scores of the next tile are computed beside the values of this one, and their softmax while those still run.
#include <cuda_runtime.h>

#include <algorithm>

#include "core/cuda/dependent_launch.cuh"
#include "core/cuda/launch.h"
#include "core/cuda/target.cuh"
#include "ops/attention/cuda/attention.h"
#include "ops/attention/cuda/barrier.cuh"
#include "ops/attention/cuda/prefill.cuh"
#include "ops/attention/cuda/wgmma.cuh"
#include "ops/attention/cuda/widen.cuh"

namespace quire::cuda {
namespace {

using namespace prefill;

constexpr int kTileKeys = 64, kConsumers = 2;
constexpr int kThreads = 128 * (kConsumers + 1);
// Unused where the kernel has no body.
[[maybe_unused]] constexpr int kTileBlocks = kTileKeys / kBlockTokens;
[[maybe_unused]] constexpr int kSlabBytes = kTileKeys * 128;       // a slab of 64 columns of a tile of keys or values
[[maybe_unused]] constexpr int kQuerySlabBytes = kTileRows * 128;  // of the queries

template <int D>
struct Shape {
  static constexpr int kStages = D == 256 ? 2 : 4;
  static constexpr int kQueryBytes = kTileRows * D * 2, kTileBytes = kTileKeys * D * 2;
  static constexpr int kKeysAt = kQueryBytes, kValuesAt = kKeysAt + kStages * kTileBytes;
  static constexpr int kBarriersAt = kValuesAt + kStages * kTileBytes;
  static constexpr int kFirstAt = kBarriersAt + 4 * kStages * 8;
  static constexpr int shared_bytes(int segments) {
    return 1024 + kFirstAt + (segments + 1) * static_cast<int>(sizeof(int32_t));
  }
};

// Addresses in shared memory, and the barriers of the ring.
template <int D>
struct Ring {
  using S = Shape<D>;
  uint32_t base;
  __device__ uint32_t keys(int j) const { return base + S::kKeysAt + j % S::kStages * S::kTileBytes; }
  __device__ uint32_t values(int j) const { return base + S::kValuesAt + j % S::kStages * S::kTileBytes; }
  __device__ uint32_t barrier(int kind, int j) const {
    return base + S::kBarriersAt + (kind * S::kStages + j % S::kStages) * 8;
  }
  __device__ uint32_t keys_full(int j) const { return barrier(0, j); }
  __device__ uint32_t keys_empty(int j) const { return barrier(1, j); }
  __device__ uint32_t values_full(int j) const { return barrier(2, j); }
  __device__ uint32_t values_empty(int j) const { return barrier(3, j); }
  __device__ static uint32_t parity(int j) { return static_cast<uint32_t>(j / S::kStages % 2); }
  __device__ void init(int producers) const {  // warps
    for (int j = 0; j < S::kStages; ++j) {
      barrier_init(keys_full(j), producers);
      barrier_init(values_full(j), producers);
      barrier_init(keys_empty(j), kConsumers * 4);
      barrier_init(values_empty(j), kConsumers * 4);
    }
    barrier_init_done();
  }
};

// Brings tile j of keys or values, by a whole warp: pieces of one slab of one block. Tokens past the segment's end
// become zeros, because 0 * NaN would not be 0.
template <int D>
__device__ void fetch(const Tile& t, const bf16* cache, int64_t block_stride, int j, uint32_t to, uint32_t full) {
  constexpr int kPieces = D / kSlabColumns * kTileBlocks;
  const int lane = threadIdx.x % 32, slab = lane / kTileBlocks, block = lane % kTileBlocks;
  const int valid = lane < kPieces ? min(max(t.end - j * kTileKeys - block * kBlockTokens, 0), kBlockTokens) : 0;
  const uint32_t piece = to + slab * kSlabBytes + block * kBlockTokens * 128;
  const int tokens = min(t.end - j * kTileKeys, kTileKeys);
  if (tokens < kTileKeys) {
    if (lane < kPieces) {
      for (uint32_t at = piece + valid * 128; at < piece + kBlockTokens * 128; at += 16)
        asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(0) : "memory");
    }
    fence_async_proxy();
    __syncwarp();
  }
  if (lane == 0) barrier_arrive_expecting(full, tokens * D * 2);
  __syncwarp();
  if (valid > 0) {
    const int64_t from = t.table[j * kTileBlocks + block] * block_stride +
                         static_cast<int64_t>(t.kv_head) * kBlockTokens * D + slab * kSlabElems;
    copy_bulk(piece, cache + from, valid * 128, full);
  }
}

template <int D>
__device__ void produce(const AttentionParams& a, const Tile& t, const Ring<D>& ring) {
  constexpr int kStages = Shape<D>::kStages;
  const int64_t stride = a.kv.block_bytes / static_cast<int64_t>(sizeof(bf16));
  for (int j = 0; j < t.key_tiles; ++j) {
    if (j >= kStages) barrier_wait(ring.keys_empty(j), ring.parity(j - kStages));
    fetch<D>(t, static_cast<const bf16*>(a.kv.k), stride, j, ring.keys(j), ring.keys_full(j));
    if (j >= kStages) barrier_wait(ring.values_empty(j), ring.parity(j - kStages));
    fetch<D>(t, static_cast<const bf16*>(a.kv.v), stride, j, ring.values(j), ring.values_full(j));
  }
}

// The same of an E4M3 cache, by a warpgroup: a thread holds the 16-byte chunks of a tile that are its own, and asks for
// those of the next tile as it writes them.
template <int D>
class Widening {
 public:
  __device__ __forceinline__ Widening(const AttentionParams& params, const Tile& tile, const Ring<D>& r)
      : a(params), t(tile), ring(r), thread(threadIdx.x % 128), token(thread / 4 % kBlockTokens) {}

  __device__ __forceinline__ void run() {
    constexpr int kStages = Shape<D>::kStages;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) load(a.kv.k, 0, b);
    for (int j = 0; j < t.key_tiles; ++j) {
      if (j >= kStages) barrier_wait(ring.keys_empty(j), ring.parity(j - kStages));
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        store(ring.keys(j), b);
        load(a.kv.v, j, b);
      }
      done(ring.keys_full(j));
      if (j >= kStages) barrier_wait(ring.values_empty(j), ring.parity(j - kStages));
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        store(ring.values(j), b);
        if (j + 1 < t.key_tiles) load(a.kv.k, j + 1, b);
      }
      done(ring.values_full(j));
    }
  }

 private:
  // A block's head is D chunks: slabs of 16 rows of 4.
  static constexpr int kPerBlock = D >= 128 ? D / 128 : 1;  // chunks that a thread has of a block
  static constexpr int kBlocks = kTileBlocks * D / 128 / kPerBlock;
  __device__ __forceinline__ int block_of(int b) const {
    return D >= 128 ? b : 2 * b + thread / D;
  }
  __device__ __forceinline__ int chunk_of(int i) const {
    return D >= 128 ? i * 128 + thread : thread % D;
  }

  // Tokens past the segment's end become zeros.
  __device__ __forceinline__ void load(const void* cache, int j, int b) {
    const int block = j * kTileBlocks + block_of(b);
    const bool there = block * kBlockTokens + token < t.end;
    const char* from = nullptr;
    scale[b] = 0;
    if (there) {
      from = static_cast<const char*>(cache) + t.table[block] * a.kv.block_bytes +
             static_cast<int64_t>(t.kv_head) * kv_head_bytes(KvFormat::kE4m3, D);
      scale[b] = static_cast<uint8_t>(from[kBlockTokens * D + token]);
    }
#pragma unroll
    for (int i = 0; i < kPerBlock; ++i)
      codes[b][i] = there ? *reinterpret_cast<const uint4*>(from + chunk_of(i) * 16) : make_uint4(0, 0, 0, 0);
  }

  __device__ __forceinline__ void store(uint32_t tile, int b) const {
    const uint32_t factor = both_halves(widening_factor(scale[b]));
    const uint32_t row = tile + (block_of(b) * kBlockTokens + token) * 128;
#pragma unroll
    for (int i = 0; i < kPerBlock; ++i)
      store_widened(row + chunk_of(i) / 64 * kSlabBytes, token, thread % 4, codes[b][i], factor);
  }
  __device__ __forceinline__ static void done(uint32_t full) {
    fence_async_proxy();
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(full);
  }

  const AttentionParams& a;
  const Tile& t;
  const Ring<D>& ring;
  const int thread, token;  // the token of a block, of all of the thread's chunks
  uint4 codes[kBlocks][kPerBlock];
  uint32_t scale[kBlocks];
};

// A warpgroup's 64 rows.
template <int D, bool kEnds>
class Rows : TwoRows<D, kTileKeys, kEnds> {
  using Base = TwoRows<D, kTileKeys, kEnds>;
  using Base::a, Base::t, Base::lane, Base::score, Base::out, Base::probability, Base::softmax, Base::pack, Base::store;

 public:
  __device__ __forceinline__ Rows(const AttentionParams& params, const Tile& tile, const Ring<D>& r, int warpgroup)
      : Base(params, tile, warpgroup * 64, threadIdx.x / 32 * 16), ring(r), wg(warpgroup) {}

  __device__ __forceinline__ void run() {
    load_queries();
#pragma unroll
    for (float& x : out) x = 0.0f;
    float alpha[2];
    issue_scores(0);
    warpgroup_wait<0>();
    pin(score);
    release(ring.keys_empty(0));
    softmax(0, alpha);
    pack();
    for (int j = 0; j + 1 < t.key_tiles; ++j) {
      issue_scores(j + 1);
      issue_values(j);
      warpgroup_wait<1>();
      pin(score);
      release(ring.keys_empty(j + 1));
      softmax(j + 1, alpha);
      warpgroup_wait<0>();
      pin(out);
      release(ring.values_empty(j));
      rescale(alpha);
      pack();
    }
    issue_values(t.key_tiles - 1);
    warpgroup_wait<0>();
    pin(out);
    store();
  }

 private:
  __device__ __forceinline__ void load_queries() {
    constexpr int kChunks = D / 8, kMine = 64 * kChunks / 128;  // of 16 bytes
    uint4 x[kMine];
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const int at = i * 128 + static_cast<int>(threadIdx.x % 128);
      const int packed = t.first_row + wg * 64 + at / kChunks;
      x[i] = make_uint4(0, 0, 0, 0);
      if (packed >= t.rows) continue;
      const int64_t token = t.segment.row + packed / t.group;
      const int head = t.kv_head * t.group + packed % t.group;
      x[i] =
          *reinterpret_cast<const uint4*>(a.q + token * a.q_stride + static_cast<int64_t>(head) * D + at % kChunks * 8);
    }
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const int at = i * 128 + static_cast<int>(threadIdx.x % 128), r = wg * 64 + at / kChunks, c = at % kChunks;
      const uint32_t to = ring.base + c / 8 * kQuerySlabBytes + r * 128 + ((c % 8) ^ (r % 8)) * 16;
      asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x[i].x), "r"(x[i].y), "r"(x[i].z),
                   "r"(x[i].w)
                   : "memory");
    }
    fence_async_proxy();
    asm volatile("bar.sync %0, 128;" ::"r"(1 + wg) : "memory");
  }

  __device__ __forceinline__ void issue_scores(int j) {
    barrier_wait(ring.keys_full(j), ring.parity(j));
    const uint64_t q = matrix_descriptor(ring.base + wg * 64 * 128, 0), k = matrix_descriptor(ring.keys(j), 0);
    pin(score);
    warpgroup_fence();
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
      const uint32_t column = i % 4 * 32;
      warpgroup_mma_n64(score, q + ((i / 4 * kQuerySlabBytes + column) >> 4), k + ((i / 4 * kSlabBytes + column) >> 4),
                        i > 0);
    }
    warpgroup_commit();
  }

  __device__ __forceinline__ void issue_values(int j) {
    barrier_wait(ring.values_full(j), ring.parity(j));
    const uint64_t v = matrix_descriptor(ring.values(j), kSlabBytes);
    pin(out);
    warpgroup_fence();
#pragma unroll
    for (int i = 0; i < kTileBlocks; ++i) warpgroup_mma_rows(out, probability[i], v + (i * kBlockTokens * 128 >> 4));
    warpgroup_commit();
  }

  // Behind the first tiles a maximum rarely moves, and a factor of 1 changes nothing.
  __device__ __forceinline__ void rescale(const float (&alpha)[2]) {
    if (__any_sync(~0u, alpha[0] != 1.0f || alpha[1] != 1.0f)) {
#pragma unroll
      for (int i = 0; i < D / 2; ++i) out[i] *= alpha[i % 4 / 2];
    }
    pin(out);
  }

  __device__ __forceinline__ void release(uint32_t barrier) {
    if (lane == 0) barrier_arrive(barrier);
  }

  const Ring<D>& ring;
  const int wg;
};

template <int D, KvFormat kFormat, bool kEnds>
__global__ void __launch_bounds__(kThreads, 1) prompt_kernel(const __grid_constant__ AttentionParams a) {
  if constexpr (!kForWgmma) {
    __trap();  // never launched: its kernel needs wgmma
  } else {
    constexpr bool kNarrow = kFormat == KvFormat::kE4m3;
    extern __shared__ char raw[];
    Ring<D> ring{(shared_address(raw) + 1023) / 1024 * 1024};
    auto* first = reinterpret_cast<int32_t*>(raw + (ring.base - shared_address(raw)) + Shape<D>::kFirstAt);
    begin_kernel();
    if (threadIdx.x == 0) ring.init(kNarrow ? 4 : 1);
    const int work = find_work(a, first);
    if (work < 0) return;
    const Tile t = find_tile<kTileKeys, kTileRows, kEnds>(a, first, work);
    const int warpgroup = threadIdx.x / 128;
    if (warpgroup == kConsumers) {
      asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kNarrow ? 72 : 24));
      if constexpr (kNarrow) {
        Widening<D>(a, t, ring).run();
      } else {
        if (threadIdx.x % 128 < 32) produce<D>(a, t, ring);
      }
    } else {
      asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kNarrow ? 216 : 240));
      Rows<D, kEnds>(a, t, ring, warpgroup).run();
    }
  }
}

template <int D, bool kEnds>
Status launch_of(cudaStream_t stream, const AttentionParams& p, int rows) {
  const int shared = Shape<D>::shared_bytes(p.segments.count - p.segments.decodes);
  const auto kernel = p.kv.format == KvFormat::kE4m3 ? prompt_kernel<D, KvFormat::kE4m3, kEnds>
                                                     : prompt_kernel<D, KvFormat::kBf16, kEnds>;
  return quire::cuda::launch(stream, "prompt_attention", kernel, dim3(static_cast<unsigned>(most_tiles(p, rows))),
                             kThreads, shared, p);
}

template <int D>
Status launch(cudaStream_t stream, const AttentionParams& p, int rows) {
  return p.ends == nullptr ? launch_of<D, false>(stream, p, rows) : launch_of<D, true>(stream, p, rows);
}

}  // namespace

Status launch_prompt_wgmma(cudaStream_t stream, const AttentionParams& p, int rows) {
  if (p.segments.count <= p.segments.decodes || rows <= 0) return {};
  if (p.head_size == 64) return launch<64>(stream, p, rows);
  if (p.head_size == 128) return launch<128>(stream, p, rows);
  return launch<256>(stream, p, rows);
}

}  // namespace quire::cuda
