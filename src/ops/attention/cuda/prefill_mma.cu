// Attention of prompt chunks on GPUs without wgmma, from sm_80 on, and of heads of 512 on all. A block of eight warps
// computes 128 rows (token, query head) of one segment and KV head, a warp 16 of them; all warps bring tiles of keys
// and values by cp.async.
//   S [16 x keys] = Q K^T     mma.sync, operands by ldmatrix; queries stay in registers where heads are small
//   O [16 x d]   += P V       mma.sync, P from registers, V by ldmatrix.trans
// There is one tile of keys and one of values: values come while scores are computed, the next keys while values are
// multiplied. So heads of 256 take 96 KiB of shared memory, and every GPU has that.
//
// Of heads of 512 a warp has no room for 16 rows of sums: two warps share the rows, and each has half of the columns,
// of the products with keys too. They add up their scores and both know the weights then. A block has 64 rows, which
// take 128 KiB, or 32 where there are 96 KiB only; a row does not see the difference. Of an E4M3
// cache (64 rows alone) keys and values come as codes, into 16 KiB more, and become bf16 on their way into the tile.
#include <cuda_runtime.h>

#include <algorithm>

#include "core/cuda/dependent_launch.cuh"
#include "core/cuda/launch.h"
#include "core/cuda/target.cuh"
#include "ops/attention/cuda/prefill.cuh"
#include "ops/attention/cuda/widen.cuh"

namespace quire::cuda::prefill {
namespace {

// Of a block, with heads of 512.
constexpr int kManyWideRows = 64, kFewWideRows = 32;

template <int D, int kBlockRows, KvFormat kFormat = KvFormat::kBf16>
struct MmaShape {
  static constexpr bool kNarrow = kFormat == KvFormat::kE4m3;
  static constexpr int kRows = kBlockRows;
  static constexpr int kShares = D > 256 ? 2 : 1;  // warps that have the same rows
  static constexpr int kThreads = 32 * (kRows / 16) * kShares;
  static constexpr int kKeys = D >= 256 ? 32 : 64;  // of a tile
  static constexpr int kTileBytes = kKeys * D * 2;
  static constexpr int kKeysAt = kRows * D * 2, kValuesAt = kKeysAt + kTileBytes;
  static constexpr int kCodesAt = kValuesAt + kTileBytes;
  static constexpr int kBytes = kCodesAt + (kNarrow ? kKeys * D : 0);
  static constexpr int kScoreBytes = 16 * kKeys * 4;  // of a warp
  static_assert(kShares == 1 || kThreads / 32 * kScoreBytes <= kTileBytes, "scores take the place of keys");
  // Before anything else the list of work lies there.
  static_assert(kBytes >= (kMaxAttentionSegments + 1) * static_cast<int>(sizeof(int32_t)));
  static_assert(kBytes <= (kRows == kManyWideRows ? 144 : 96) << 10,
                "only for those many rows some GPUs have too little");
};

// A warp's 16 rows. Matrices in shared memory are slabs of 64 columns: rows of 128 bytes whose eight pieces are
// exchanged by the row's number modulo 8, as the cache has them.
template <int D, int kRows, KvFormat kFormat, bool kEnds>
class WarpRows : TwoRows<D, MmaShape<D, kRows>::kKeys, kEnds, D / MmaShape<D, kRows>::kShares> {
  using S = MmaShape<D, kRows, kFormat>;
  static constexpr int kColumns = D / S::kShares;
  using Base = TwoRows<D, S::kKeys, kEnds, kColumns>;
  using Base::a, Base::t, Base::lane, Base::score, Base::out, Base::probability, Base::kSteps;
  static constexpr bool kHoldsQueries = D <= 128;  // in registers

 public:
  __device__ __forceinline__ WarpRows(const AttentionParams& params, const Tile& tile, uint32_t shared)
      : Base(params, tile, first_row(), first_row(), share() * kColumns), base(shared) {
    const int q_row = first_row() + lane % 16, swizzle = lane % 8, slabs = share() * (kColumns / kSlabColumns);
    query_at = base + slabs * (kRows * 128) + q_row * 128 + ((lane / 16) ^ swizzle) * 16;
    const uint32_t own_slabs = base + slabs * (S::kKeys * 128);  // of keys and of values
    keys_at = own_slabs + S::kKeysAt + (lane / 16 * 8 + lane % 8) * 128 + ((lane / 8 % 2) ^ swizzle) * 16;
    values_at = own_slabs + S::kValuesAt + lane % 16 * 128 + ((lane / 16) ^ swizzle) * 16;
  }

  __device__ __forceinline__ void run() {
    load_queries();
    find_block(0);
    fetch(a.kv.k, S::kKeysAt);
#pragma unroll
    for (float& x : out) x = 0.0f;
    for (int j = 0; j < t.key_tiles; ++j) {
      wait_copies<0>();
      if constexpr (S::kNarrow) widen(S::kKeysAt);
      __syncthreads();  // keys are there for all warps, and all have left the values before
      if constexpr (kHoldsQueries) {
        if (j == 0) {
#pragma unroll
          for (int i = 0; i < D / 16; ++i) load_query(query[i], i);
        }
      }
      fetch(a.kv.v, S::kValuesAt);
      multiply_keys();
      if constexpr (S::kShares == 2) add_shares();
      float alpha[2];
      Base::softmax(j, alpha);
      Base::pack();
      // Multiplying by exactly 1 changes nothing: skipped while no row's maximum moves.
      if (__any_sync(~0u, alpha[0] != 1.0f || alpha[1] != 1.0f)) {
#pragma unroll
        for (int i = 0; i < kColumns / 2; ++i) out[i] *= alpha[i % 4 / 2];
      }
      wait_copies<0>();
      if constexpr (S::kNarrow) widen(S::kValuesAt);
      __syncthreads();  // values are there, and all have left the keys
      if (j + 1 < t.key_tiles) {
        find_block(j + 1);
        fetch(a.kv.k, S::kKeysAt);
      }
      multiply_values();
    }
    Base::store();
  }

 private:
  // The warp's rows in the block, and which of its columns.
  static __device__ __forceinline__ int first_row() {
    return static_cast<int>(threadIdx.x) / (32 * S::kShares) * 16;
  }
  static __device__ __forceinline__ int share() {
    return static_cast<int>(threadIdx.x) / 32 % S::kShares;
  }

  // ---- Copies, by all threads; each call of fetch is a group

  __device__ __forceinline__ void load_queries() const {
    constexpr int kChunks = D / 8;  // of 16 bytes
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < kRows * kChunks; i += S::kThreads) {
      const int r = i / kChunks, c = i % kChunks, packed = t.first_row + r;
      const bool there = packed < t.rows;
      const int64_t token = t.segment.row + (there ? packed / t.group : 0);
      const int head = t.kv_head * t.group + packed % t.group;
      const bf16* from = a.q + token * a.q_stride + static_cast<int64_t>(head) * D + c * 8;
      copy_async16(base + c / 8 * (kRows * 128) + r * 128 + ((c % 8) ^ (r % 8)) * 16, from, there);
    }
  }

  // A thread copies from one block of 16 keys of a tile. Which block of the cache that is, and how many of its tokens
  // are.
  static constexpr int kCopiers = S::kThreads / kSteps;
  __device__ __forceinline__ int own_block() const {
    return static_cast<int>(threadIdx.x) / kCopiers;
  }
  __device__ __forceinline__ void find_block(int j) {
    const int first = j * S::kKeys + own_block() * kBlockTokens;
    valid = min(t.end - first, kBlockTokens);
    from_block = 0;
    if (valid > 0)
      from_block = t.table[first / kBlockTokens] * a.kv.block_bytes +
                   static_cast<int64_t>(t.kv_head) * kv_head_bytes(kFormat, D);
  }
  // A tile of keys or values: that of find_block. Tokens past the segment's end become zeros, because 0 * NaN would not
  // be 0.
  __device__ __forceinline__ void fetch(const void* kv, int to) {
    const char* const cache = static_cast<const char*>(kv) + from_block;
    if constexpr (S::kNarrow) {
      fetch_codes(cache);
    } else {
#pragma unroll
      for (int i = 0; i < kBlockTokens * D / 8 / kCopiers; ++i) {
        const int chunk = i * kCopiers + static_cast<int>(threadIdx.x) % kCopiers, slab = chunk / 128;
        const bool there = chunk % 128 / 8 < valid;
        copy_async16(base + to + (slab * S::kKeys + own_block() * kBlockTokens) * 128 + chunk % 128 * 16,
                     cache + (there ? chunk * 16 : 0), there);
      }
    }
    commit_copies();
  }

  // Of an E4M3 cache a thread has chunk `own_chunk` of one token in each of four slabs. They wait in a place that it
  // alone reads until the tile may be overwritten: widen() writes it.
  static constexpr __device__ int own_slabs() {
    return D / kSlabColumns * kBlockTokens * 4 / kCopiers;
  }
  __device__ __forceinline__ int own_chunk() const {
    return static_cast<int>(threadIdx.x) % 4;
  }
  __device__ __forceinline__ int own_token() const {
    return static_cast<int>(threadIdx.x) / 4 % kBlockTokens;
  }
  __device__ __forceinline__ int own_slab() const {  // the first
    return static_cast<int>(threadIdx.x) % kCopiers / (4 * kBlockTokens) * own_slabs();
  }
  __device__ __forceinline__ uint32_t own_codes(int i) const {
    return base + S::kCodesAt + (i * S::kThreads + static_cast<int>(threadIdx.x)) * 16;
  }
  __device__ __forceinline__ void fetch_codes(const char* cache) {
    const bool there = own_token() < valid;
    const char* const from =
        cache + (there ? own_slab() * kSlabElems + own_token() * kSlabColumns + own_chunk() * 16 : 0);
    scale = there ? static_cast<uint8_t>(cache[kBlockTokens * D + own_token()]) : 0;
#pragma unroll
    for (int i = 0; i < own_slabs(); ++i) copy_async16(own_codes(i), from + (there ? i * kSlabElems : 0), there);
  }
  __device__ __forceinline__ void widen(int to) const {
    const uint32_t factors = both_halves(widening_factor(scale));
    const uint32_t row = base + to + (own_block() * kBlockTokens + own_token()) * 128;
#pragma unroll
    for (int i = 0; i < own_slabs(); ++i) {
      uint4 x;
      asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                   : "r"(own_codes(i))
                   : "memory");
      store_widened(row + (own_slab() + i) * (S::kKeys * 128), own_token(), own_chunk(), x, factors);
    }
  }

  // ---- Products. Four steps of 16 columns are a slab; a step further is another 32 bytes of a row, exchanged by xor.

  __device__ __forceinline__ void load_query(uint32_t (&q)[4], int step) const {
    load_matrices(q, (query_at ^ (step % 4 * 32)) + step / 4 * (kRows * 128));
  }
  __device__ __forceinline__ void multiply_keys() {
#pragma unroll
    for (float& x : score) x = 0.0f;
#pragma unroll
    for (int step = 0; step < kColumns / 16; ++step) {
      uint32_t own[4];
      if constexpr (!kHoldsQueries) load_query(own, step);
#pragma unroll
      for (int n = 0; n < kSteps; ++n) {
        uint32_t k[4];
        load_matrices(k, (keys_at ^ (step % 4 * 32)) + step / 4 * (S::kKeys * 128) + n * 2048);
        const auto& q = kHoldsQueries ? query[kHoldsQueries ? step : 0] : own;
        mma_bf16(four(score, 2 * n), q, k[0], k[1]);
        mma_bf16(four(score, 2 * n + 1), q, k[2], k[3]);
      }
    }
  }
  // Scores of the warp's columns become those of all. They go where the keys are, which all have left then.
  __device__ __forceinline__ void add_shares() {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const uint32_t at = base + S::kKeysAt + lane * 16;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < S::kKeys / 2; i += 4)
      asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at + warp * S::kScoreBytes + i * 128),
                   "f"(score[i]), "f"(score[i + 1]), "f"(score[i + 2]), "f"(score[i + 3])
                   : "memory");
    asm volatile("bar.sync %0, 64;" ::"r"(1 + warp / 2) : "memory");
#pragma unroll
    for (int i = 0; i < S::kKeys / 2; i += 4) {
      float x[4];
      asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                   : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
                   : "r"(at + (warp ^ 1) * S::kScoreBytes + i * 128)
                   : "memory");
#pragma unroll
      for (int c = 0; c < 4; ++c) score[i + c] = __fadd_rn(score[i + c], x[c]);
    }
  }
  __device__ __forceinline__ void multiply_values() {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int n = 0; n < kColumns / 16; ++n) {
        uint32_t v[4];
        load_matrices_transposed(v, (values_at ^ (n % 4 * 32)) + n / 4 * (S::kKeys * 128) + step * 2048);
        mma_bf16(four(out, 2 * n), probability[step], v[0], v[1]);
        mma_bf16(four(out, 2 * n + 1), probability[step], v[2], v[3]);
      }
    }
  }
  template <int kCount>
  static __device__ __forceinline__ float (&four(float (&x)[kCount], int i))[4] {
    return reinterpret_cast<float(&)[4]>(x[4 * i]);
  }

  const uint32_t base;
  uint32_t query_at, keys_at, values_at;
  int valid = 0;
  int64_t from_block = 0;  // bytes
  uint32_t scale = 0;
  uint32_t query[kHoldsQueries ? D / 16 : 1][4];
};

template <int D, int kRows, KvFormat kFormat, bool kEnds>
__global__ void __launch_bounds__(MmaShape<D, kRows>::kThreads, D == 64 ? 2 : 1)
    prompt_mma_kernel(const __grid_constant__ AttentionParams a) {
  if constexpr (kForWgmma && D != kWideHeadSize) {
    __trap();  // never launched: GpuLevel::kNoWgmma
  } else {
    using S = MmaShape<D, kRows>;
    extern __shared__ __align__(1024) char shared[];
    begin_kernel();
    auto* first = reinterpret_cast<int32_t*>(shared);
    const int work = find_work<kRows>(a, first);
    if (work < 0) return;
    const Tile t = find_tile<S::kKeys, kRows, kEnds>(a, first, work);
    __syncthreads();  // queries and keys take the list's place
    WarpRows<D, kRows, kFormat, kEnds>(a, t, shared_address(shared)).run();
  }
}

template <int D, int kRows = kTileRows, KvFormat kFormat = KvFormat::kBf16>
Status launch(cudaStream_t stream, const AttentionParams& p, int rows) {
  using S = MmaShape<D, kRows, kFormat>;
  const auto kernel =
      p.ends == nullptr ? prompt_mma_kernel<D, kRows, kFormat, false> : prompt_mma_kernel<D, kRows, kFormat, true>;
  return quire::cuda::launch(stream, "prompt_attention", kernel,
                             dim3(static_cast<unsigned>(most_tiles(p, rows, kRows))), S::kThreads, S::kBytes, p);
}

}  // namespace

}  // namespace quire::cuda::prefill

namespace quire::cuda {

Status launch_prompt_mma(cudaStream_t stream, const AttentionParams& p, int rows) {
  if (p.segments.count <= p.segments.decodes || rows <= 0) return {};
  if (p.head_size == 64) return prefill::launch<64>(stream, p, rows);
  if (p.head_size == 128) return prefill::launch<128>(stream, p, rows);
  return prefill::launch<256>(stream, p, rows);
}

Status launch_prompt_wide(cudaStream_t stream, const AttentionParams& p, int rows) {
  if (p.segments.count <= p.segments.decodes || rows <= 0) return {};
  if (p.kv.format == KvFormat::kE4m3)
    return prefill::launch<kWideHeadSize, prefill::kManyWideRows, KvFormat::kE4m3>(stream, p, rows);
  QUIRE_TRY(const DeviceLimits device, device_limits());
  return device.shared_bytes >= prefill::MmaShape<kWideHeadSize, prefill::kManyWideRows>::kBytes
             ? prefill::launch<kWideHeadSize, prefill::kManyWideRows>(stream, p, rows)
             : prefill::launch<kWideHeadSize, prefill::kFewWideRows>(stream, p, rows);
}

}  // namespace quire::cuda
