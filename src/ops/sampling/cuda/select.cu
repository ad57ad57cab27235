// From the blocks' summaries to a token: one block of threads a row. Every filter asks for the end of a prefix
// (pool.cuh); the draw is a race of what they leave (race.cuh).
#include <cuda_runtime.h>

#include "core/cuda/dependent_launch.cuh"
#include "core/cuda/launch.h"
#include "ops/sampling/cuda/pool.cuh"
#include "ops/sampling/cuda/race.cuh"
#include "ops/sampling/cuda/select.cuh"

namespace quire::cuda {
namespace {

class Selector : PoolWalker {
 public:
  __device__ Selector(const SampleParams& params, const BlockStats& all, int row_index)
      : PoolWalker(params, row_index), stats(all), at(static_cast<int64_t>(row_index) * blocks) {}

  // -1 if nothing is possible.
  __device__ int32_t choose() {
    if (!load_maxima(stats.max + at)) return -1;
    if (row.temperature < kGreedyBelow) return first_max();
    if (!filters(p, row)) return draw_unfiltered();
    Pool pool;
    bool complete = false;  // the pool is what an earlier filter left, not yet the whole row
    if (row.top_k > 0 && row.top_k < p.vocab) {
      keep_top_k(pool, row.top_k);
      complete = true;
    }
    if (row.typical_p < 1.0f) {
      keep_typical(pool);
      complete = true;
    }
    if (row.top_p < 1.0f) {
      keep_top_p(pool, complete);
      complete = true;
    }
    if (row.min_p > 0.0f) keep_min_p(pool, complete);
    return draw(pool);
  }

  // Of a row with a target: the target, or -1 if nothing is possible.
  __device__ int32_t score() {
    if (!load_maxima(stats.raw_max + at)) return -1;
    Pool pool;
    pool.raw = true;
    pool.low = logits[row.target];
    const float own = pool.low;
    Amount above = 0;
    for_each(pool, [&](float x, int32_t) { above += x > own; });
    above = block_total(above);
    if (threadIdx.x == 0) p.ranks[r] = 1 + static_cast<int32_t>(above);
    return row.target;
  }

  // Log-probabilities under the logits as given: the token's and the likeliest.
  __device__ void report(int32_t token) {
    load_maxima(stats.raw_max + at);
    double sum = 0;
    for (int b = threadIdx.x; b < blocks; b += kSelectThreads)
      sum += static_cast<double>(stats.raw_sum[at + b]) *
             exp(static_cast<double>(shared().block_max[b]) - static_cast<double>(softmax.max));
    const double log_total = static_cast<double>(softmax.max) + log(block_total(sum));
    if (threadIdx.x == 0) p.logprobs[r] = static_cast<float>(static_cast<double>(logits[token]) - log_total);
    const int n = min(row.logprobs, p.max_top);
    if (n == 0) {
      if (threadIdx.x == 0) p.top_count[r] = 0;
      return;
    }
    Pool pool;
    pool.raw = true;
    pool.low = kth_block_maximum(n);
    gather(pool);
    const Border last = border(pool, Key::kLogitDown, Sum::kCount, static_cast<Amount>(n));
    keep_prefix(pool, last);
    pool.listed = false;
    gather(pool);  // n at most, so they fit
    // A token's place is the number of better ones.
    for (int i = threadIdx.x; i < shared().size; i += kSelectThreads) {
      int place = 0;
      for (int j = 0; j < shared().size; ++j)
        place += shared().logit[j] > shared().logit[i] ||
                 (shared().logit[j] == shared().logit[i] && shared().id[j] < shared().id[i]);
      const int64_t to = static_cast<int64_t>(r) * p.max_top + place;
      p.top_ids[to] = shared().id[i];
      p.top_logprobs[to] = static_cast<float>(static_cast<double>(shared().logit[i]) - log_total);
    }
    if (threadIdx.x == 0) p.top_count[r] = shared().size;
  }

 private:
  __device__ int32_t first_max() {
    __syncthreads();
    if (threadIdx.x == 0) shared().best = kLastId;
    __syncthreads();
    for (int b = warp; b < blocks; b += kSelectWarps) {
      if (shared().block_max[b] != softmax.max) continue;
      for_each_of(b, false, softmax.max, [&](float, int32_t id) { atomicMin(&shared().best, id); });
      break;  // later blocks of this warp have higher ids
    }
    __syncthreads();
    return shared().best;
  }

  // Likeliest first, up to a border.
  __device__ void keep_prefix(Pool& pool, const Border& last) {
    if (last.key == kLastKey) return;
    pool.top = true;
    pool.cut = from_ordered(~last.key);
    pool.cut_id = last.id;
    pool.low = fmaxf(pool.low, pool.cut);
  }

  __device__ void keep_top_k(Pool& pool, int k) {
    pool.low = kth_block_maximum(k);
    gather(pool);
    const Border last = border(pool, Key::kLogitDown, Sum::kCount, static_cast<Amount>(k));
    if (last.key != kLastKey) pool.low = from_ordered(~last.key);  // and all that equal it
    gather(pool);
  }

  // -log p = log(total) - exponent, and the entropy is its mean: what remains is the distance of exponents from theirs.
  __device__ void keep_typical(Pool& pool) {
    const auto weighted = static_cast<double>(total_of(pool, Sum::kSurprise));
    const auto total = static_cast<double>(mass(pool));
    softmax.mean = static_cast<float>(-weighted / total);
    const auto target = static_cast<Amount>(ceil(static_cast<double>(row.typical_p) * total));
    const Border last = border(pool, Key::kDistance, Sum::kWeight, target);
    if (last.key != kLastKey) {
      pool.typical = true;
      pool.reach = __uint_as_float(last.key);
      pool.reach_id = last.id;
    }
    gather(pool);
  }

  __device__ void keep_top_p(Pool& pool, bool complete) {
    const double total = complete ? static_cast<double>(mass(pool)) : total_weight() * static_cast<double>(kOne);
    const auto target = static_cast<Amount>(ceil(static_cast<double>(row.top_p) * total));
    if (!complete) {
      // Language models mostly need few tokens: those within e^-5 or e^-10 of the likeliest.
      for (float depth = 5.0f; depth <= 10.0f; depth += 5.0f) {
        pool.low = softmax.max - depth * row.temperature;
        gather(pool);
        if (!pool.listed || mass(pool) >= target) break;
        pool.listed = false;
      }
      if (!pool.listed) pool.low = -FLT_MAX;
    }
    keep_prefix(pool, border(pool, Key::kLogitDown, Sum::kWeight, target));
    gather(pool);
  }

  __device__ void keep_min_p(Pool& pool, bool complete) {
    float likeliest = 1.0f;
    if (complete) {
      float most = -INFINITY;
      for_each(pool, [&](float x, int32_t) { most = fmaxf(most, x); });
      likeliest = softmax.weight(block_greatest(most));
    } else {  // a little more than needed: the weights decide
      pool.low = fmaxf(softmax.max + (logf(row.min_p) - 0.01f) * row.temperature, -FLT_MAX);
    }
    pool.least_weight = row.min_p * likeliest;
    gather(pool);
  }

  __device__ int32_t draw(const Pool& given) {
    const Pool pool = given;
    const Softmax f = softmax;
    Race race(p, row);
    if (pool.listed) {
      for (int i = threadIdx.x; i < shared().size; i += kSelectThreads)
        if (f.holds(pool, shared().logit[i], shared().id[i])) race.add_one(shared().logit[i], shared().id[i]);
    } else {
      for (int b = warp; b < blocks; b += kSelectWarps) {
        if (!(shared().block_max[b] >= pool.low)) continue;
        float x[kLogitsPerLane];
        load_block(b, pool.raw, x);
#pragma unroll
        for (int i = 0; i < kLogitsPerLane; ++i)
          if (!f.holds(pool, x[i], token_of(b, lane, i))) x[i] = -INFINITY;
        race.add(x, shared().block_max[b], b, lane);
      }
    }
    return column_of(block_best(race.best));
  }

  // The sum of a block's weights, from the scan.
  __device__ double block_weight(int b) const {
    return static_cast<double>(stats.sum[at + b]) * static_cast<double>(softmax.weight(shared().block_max[b]));
  }
  __device__ double total_weight() {
    double sum = 0;
    for (int b = threadIdx.x; b < blocks; b += kSelectThreads) sum += block_weight(b);
    return block_total(sum);
  }

  // Without filters: the best of what the scan's warps have seen.
  __device__ int32_t draw_unfiltered() {
    const int shares = sample_shares(p.vocab);
    ScoredColumn best = 0;
    for (int i = threadIdx.x; i < shares; i += kSelectThreads) {
      const ScoredColumn s = stats.best[static_cast<int64_t>(r) * shares + i];
      best = s > best ? s : best;
    }
    return column_of(block_best(best));
  }

  const BlockStats& stats;
  const int64_t at;  // of the row's first block
};

__global__ void __launch_bounds__(kSelectThreads, 1)
    select(const __grid_constant__ SampleParams p, const __grid_constant__ BlockStats stats) {
  begin_kernel(p, stats);
  const int r = static_cast<int>(blockIdx.x);
  const SampleRow row = p.row[r];
  int32_t token = -1;
  if ((row.flags & kSampleIdle) == 0) {
    Selector selector(p, stats, r);
    token = row.target < 0 ? selector.choose() : selector.score();
    if (token >= 0 && row.logprobs >= 0) selector.report(token);
  }
  if (threadIdx.x != 0) return;
  if (token >= 0 && p.ids != nullptr) token = p.ids[token];
  p.tokens[r] = token;
  if (token < 0 || row.logprobs < 0) {
    p.logprobs[r] = 0.0f;
    p.top_count[r] = 0;
  }
  if (p.ranks != nullptr && (token < 0 || row.target < 0)) p.ranks[r] = 0;
  if ((row.flags & (kSampleIdle | kSampleTentative)) != 0) return;
  if (row.batch_slot >= 0) p.sampled[row.batch_slot] = token;
  if (row.history >= 0) {
    int32_t filled = p.history.seen_count[row.history];
    note(p.history, row.history, token, false, filled);
    p.history.seen_count[row.history] = filled;
  }
}

}  // namespace

Status launch_select(cudaStream_t stream, const SampleParams& p, const BlockStats& stats) {
  return launch(stream, "sample: select", select, dim3(static_cast<unsigned>(p.rows)), kSelectThreads,
                sizeof(PoolScratch), p, stats);
}

}  // namespace quire::cuda
