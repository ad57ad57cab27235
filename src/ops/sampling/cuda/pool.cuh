// The tokens still in a draw, and the one question that every filter asks of them: in the order of some key, which is
// the last token of the shortest prefix whose count, or weight, reaches a target? All members are called by a whole
// block.
#pragma once

#include "ops/sampling/cuda/blocks.cuh"
#include "ops/sampling/cuda/narrow.cuh"

namespace quire::cuda {

inline constexpr int kSelectWarps = kSelectThreads / 32, kList = kBins, kRanked = 128;
inline constexpr int kMaxBlocks = kMaxSampleVocab / kBlockLogits;
inline constexpr float kOne = 0x1p44f;  // weight 1 as an integer: the sum of 2^20 of them fits
inline constexpr uint32_t kLastKey = 0xffffffffu;
inline constexpr int32_t kLastId = 0x7fffffff;
using Amount = unsigned long long;

// What tokens are ordered by, ascending, and what is added up. Values at run time, not types: a walk over a row is much
// code, and most copies of it would be cold.
enum class Key { kLogitDown, kDistance };
enum class Sum { kCount, kWeight, kSurprise };

// The last token of a prefix in the order of (key, id).
struct Border {
  uint32_t key;
  int32_t id;
};

// Which tokens are left: of a row as given or as sampled, those that satisfy all limits. They stand in a list once that
// is known to be short.
struct Pool {
  bool raw = false, listed = false;
  float low = -FLT_MAX;               // logits below are out
  bool typical = false, top = false;  // the prefixes that typical-p and top-p kept
  float reach = 0, cut = 0;
  int32_t reach_id = 0, cut_id = 0;
  float least_weight = 0;
};

struct PoolScratch {
  Histogram histogram;
  float logit[kList];  // the list, in any order
  int32_t id[kList];
  float block_max[kMaxBlocks];
  double partial[kSelectWarps];
  Amount sum;
  uint32_t key;  // results of a search
  int32_t last, size, best;
};

// The block's scratch. A function and not a reference that is handed about: the compiler then knows that it is shared
// memory, and atomic additions there are one instruction.
__device__ __forceinline__ PoolScratch& shared() {
  extern __shared__ __align__(16) char pool_scratch[];
  return *reinterpret_cast<PoolScratch*>(pool_scratch);
}

// The softmax of a row before its normalisation, and what tokens are measured by. Copied by value into loops: what is
// reached through a pointer would be read again for every token.
struct Softmax {
  float max = 0, inverse_temperature = 1, mean = 0;

  __device__ float exponent(float x) const { return __fmul_rn(__fsub_rn(x, max), inverse_temperature); }
  __device__ float weight(float x) const { return weight_of(exponent(x)); }
  __device__ static Amount whole(float w) { return __float2ull_rn(w * kOne); }
  __device__ float distance(float x) const { return fabsf(__fsub_rn(exponent(x), mean)); }
  __device__ uint32_t key_of(Key key, float x) const {
    if (key == Key::kLogitDown) return ~ordered(x);
    return __float_as_uint(distance(x));
  }
  __device__ Amount amount_of(Sum sum, float x) const {
    if (sum == Sum::kCount) return 1;
    const float e = exponent(x), w = weight_of(e);
    if (sum == Sum::kWeight) return whole(w);
    return w > 0 ? whole(w * -e) : 0;
  }
  __device__ bool holds(const Pool& pool, float x, int32_t id) const {
    if (!(x >= pool.low)) return false;
    if (pool.typical) {
      const float d = distance(x);
      if (d > pool.reach || (d == pool.reach && id > pool.reach_id)) return false;
    }
    if (pool.top && (x < pool.cut || (x == pool.cut && id > pool.cut_id))) return false;
    return pool.least_weight == 0.0f || weight(x) >= pool.least_weight;
  }
};

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
  return x;
}

class PoolWalker {
 protected:
  __device__ PoolWalker(const SampleParams& params, int row_index)
      : p(params),
        r(row_index),
        row(params.row[row_index]),
        lane(threadIdx.x % 32),
        warp(threadIdx.x / 32),
        blocks(sample_blocks(params.vocab)),
        logits(params.logits + row_index * params.logits_stride),
        modified(modifies(params, row)),
        softmax{0, 1.0f / row.temperature, 0} {}

  // Copies the blocks' maxima, and finds theirs; false if a logit is NaN or +infinity, or none is above -infinity.
  __device__ bool load_maxima(const float* from) {
    __syncthreads();
    float m = -INFINITY;
    bool fine = true;
    for (int b = threadIdx.x; b < blocks; b += kSelectThreads) {
      const float x = from[b];
      shared().block_max[b] = x;
      fine &= x <= FLT_MAX;
      m = fmaxf(m, x);
    }
    softmax.max = block_greatest(m);
    return __syncthreads_and(fine) != 0 && softmax.max > -INFINITY;
  }

  __device__ float block_greatest(float x) {
    x = warp_max(x);
    __syncthreads();
    if (lane == 0) shared().partial[warp] = static_cast<double>(x);
    __syncthreads();
    for (int w = 0; w < kSelectWarps; ++w) x = fmaxf(x, static_cast<float>(shared().partial[w]));
    return x;
  }
  // The sum of every thread's x, in a fixed order.
  __device__ double block_total(double x) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
    __syncthreads();
    if (lane == 0) shared().partial[warp] = x;
    __syncthreads();
    double sum = 0;
    for (int w = 0; w < kSelectWarps; ++w) sum += shared().partial[w];
    return sum;
  }
  __device__ Amount block_total(Amount x) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
    __syncthreads();
    if (threadIdx.x == 0) shared().sum = 0;
    __syncthreads();
    if (lane == 0) atomicAdd(&shared().sum, x);
    __syncthreads();
    return shared().sum;
  }

  // A block's logits, as given or as sampled; by a warp.
  __device__ __forceinline__ void load_block(int block, bool raw, float (&x)[kLogitsPerLane]) const {
    load_raw(logits, p.vocab, block, lane, 0, x);
    if (!modified || raw) return;
    float y[kLogitsPerLane];  // only this copy has an address: x stays in registers
#pragma unroll
    for (int i = 0; i < kLogitsPerLane; ++i) y[i] = x[i];
    modify_block(block, y);
#pragma unroll
    for (int i = 0; i < kLogitsPerLane; ++i) x[i] = y[i];
  }
  // Calls fn(logit, id) for every token of a block that reaches `low`; by a warp.
  template <class Fn>
  __device__ __forceinline__ void for_each_of(int block, bool raw, float low, Fn fn) const {
    float x[kLogitsPerLane];
    load_block(block, raw, x);
#pragma unroll
    for (int i = 0; i < kLogitsPerLane; ++i)
      if (x[i] >= low) fn(x[i], token_of(block, lane, i));
  }
  __device__ __noinline__ void modify_block(int block, float (&x)[kLogitsPerLane]) const {
    modify(p, row, block, lane, 0, x);
  }

  // The greatest of every thread's x.
  __device__ unsigned long long block_best(unsigned long long x) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x = max(x, __shfl_xor_sync(~0u, x, step));
    __syncthreads();
    if (lane == 0) shared().partial[warp] = __longlong_as_double(static_cast<long long>(x));
    __syncthreads();
    for (int w = 0; w < kSelectWarps; ++w)
      x = max(x, static_cast<unsigned long long>(__double_as_longlong(shared().partial[w])));
    return x;
  }

  // Calls fn(logit, id) for every token of the pool, in any order, on any thread.
  template <class Fn>
  __device__ __forceinline__ void for_each(const Pool& given, Fn fn) {
    const Pool pool = given;  // in registers, as is the softmax
    const Softmax f = softmax;
    const auto call = [&](float x, int32_t id) {
      if (f.holds(pool, x, id)) fn(x, id);
    };
    if (pool.listed) {
      for (int i = threadIdx.x; i < shared().size; i += kSelectThreads) call(shared().logit[i], shared().id[i]);
      return;
    }
    for (int b = warp; b < blocks; b += kSelectWarps)
      if (shared().block_max[b] >= pool.low) for_each_of(b, pool.raw, pool.low, call);
  }

  // Makes the pool a list if it is short enough.
  __device__ __noinline__ void gather(Pool& pool) {
    if (pool.listed) return;
    __syncthreads();
    if (threadIdx.x == 0) shared().size = 0;
    __syncthreads();
    int last = 0;  // once there are too many, the rest need not be counted
    for_each(pool, [&](float x, int32_t id) {
      if (last > kList) return;
      last = atomicAdd(&shared().size, 1);
      if (last >= kList) return;
      shared().logit[last] = x;
      shared().id[last] = id;
    });
    __syncthreads();
    pool.listed = shared().size <= kList;
  }

  __device__ __noinline__ Amount total_of(const Pool& pool, Sum sum) {
    Amount total = 0;
    const Softmax f = softmax;
    for_each(pool, [&, f](float x, int32_t) { total += f.amount_of(sum, x); });
    return block_total(total);
  }
  __device__ Amount mass(const Pool& pool) {
    return total_of(pool, Sum::kWeight);
  }

  // The last token of the shortest prefix, in ascending order of (key, id), whose amounts reach `target`; all tokens if
  // they do not.
  __device__ __noinline__ Border border(const Pool& pool, Key key, Sum sum, Amount target) {
    target = target > 0 ? target : 1;
    if (pool.listed && shared().size <= kRanked) return border_by_rank(pool, key, sum, target);
    uint32_t k = 0, id = 0;
    constexpr int kKeyShift[] = {21, 10, 0}, kKeyBits[] = {11, 11, 10};
    for (int i = 0; i < 3; ++i)
      if (!narrow(pool, key, sum, false, 0, kKeyShift[i], kKeyBits[i], k, target)) return {kLastKey, kLastId};
    if (shared().histogram.elements == 1) return {k, kLastId};
    constexpr int kIdShift[] = {10, 0}, kIdBits[] = {11, 10};
    for (int i = 0; i < 2; ++i)
      if (!narrow(pool, key, sum, true, k, kIdShift[i], kIdBits[i], id, target)) return {kLastKey, kLastId};
    return {k, static_cast<int32_t>(id)};
  }

  // One digit more of the key at which the sum reaches the target, which becomes what is left of it. by_id: of the id
  // instead, among tokens whose key is `wanted`.
  __device__ __noinline__ bool narrow(const Pool& pool, Key key, Sum sum, bool by_id, uint32_t wanted, int shift,
                                      int bits, uint32_t& found, Amount& target) {
    shared().histogram.clear();
    Adder adder(shared().histogram);
    const uint32_t mask = (1u << bits) - 1, above = found;
    const Softmax f = softmax;
    for_each(pool, [&, f](float x, int32_t id) {
      uint32_t k = f.key_of(key, x);
      if (by_id) {
        if (k != wanted) return;
        k = static_cast<uint32_t>(id);
      }
      if (((static_cast<uint64_t>(k) ^ above) >> (shift + bits)) == 0)
        adder.add(k >> shift & mask, f.amount_of(sum, x));
    });
    adder.flush();
    search_histogram(target);
    if (!shared().histogram.found) return false;
    found |= shared().histogram.bin << shift;
    target = shared().histogram.left;
    return true;
  }

  __device__ __noinline__ void search_histogram(Amount target) {
    shared().histogram.search(target);
  }

  // For short lists: every token adds up what is not behind it.
  __device__ __noinline__ Border border_by_rank(const Pool& pool, Key key, Sum sum, Amount target) {
    const int n = shared().size, i = threadIdx.x;
    uint32_t mine = kLastKey;
    Amount own = 0;
    __syncthreads();
    if (i < n) {
      if (softmax.holds(pool, shared().logit[i], shared().id[i])) {
        mine = softmax.key_of(key, shared().logit[i]);
        own = softmax.amount_of(sum, shared().logit[i]);
      }
      shared().histogram.count[i] = mine;
      shared().histogram.set(i, own);
    }
    if (i == 0) {
      shared().key = kLastKey;
      shared().last = kLastId;
    }
    __syncthreads();
    if (own > 0) {
      Amount upto = 0;
      for (int j = 0; j < n; ++j) {
        const uint32_t k = shared().histogram.count[j];
        if (k < mine || (k == mine && shared().id[j] <= shared().id[i])) upto += shared().histogram.get(j);
      }
      if (upto >= target && upto - own < target) {
        shared().key = mine;
        shared().last = shared().id[i];
      }
    }
    __syncthreads();
    return {shared().key, shared().last};
  }

  // A value that at least k logits reach, or the lowest there is: the k-th largest maximum of blocks.
  __device__ float kth_block_maximum(int k) {
    if (k > blocks) return -FLT_MAX;
    __syncthreads();
    for (int b = threadIdx.x; b < blocks; b += kSelectThreads) {
      shared().logit[b] = shared().block_max[b];
      shared().id[b] = b;
    }
    if (threadIdx.x == 0) shared().size = blocks;
    __syncthreads();
    Pool all;
    all.listed = true;
    const Border last = border(all, Key::kLogitDown, Sum::kCount, static_cast<Amount>(k));
    return last.key == kLastKey ? -FLT_MAX : from_ordered(~last.key);  // fewer blocks hold a possible token
  }

  const SampleParams& p;
  const int r;
  const SampleRow row;
  const int lane, warp, blocks;
  const float* logits;
  const bool modified;
  Softmax softmax;
};

}  // namespace quire::cuda
