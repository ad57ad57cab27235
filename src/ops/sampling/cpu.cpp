// Sampling without sorting the vocabulary: vector passes over the logits (scan.h) find a short list of
// candidates, and everything after works on the list. V = 248320 on one core of a 2 GHz server CPU: see
// bench.cpp.
#include <atomic>
#include <cmath>

#include "ops/sampling/internal.h"
#include "ops/sampling/scan.h"

namespace quire::sampling {
namespace {

// Scratch memory of one task. Pointers that no row of the call needs are null.
struct Scratch {
  float* logits = nullptr;          // [V] a modified copy of a row
  float* block_max = nullptr;       // [blocks]
  float* block_scratch = nullptr;   // [blocks]
  int32_t* counts = nullptr;        // [V] zero between rows
  int32_t* seen = nullptr;          // [V] tokens with a count
  Candidate* candidates = nullptr;  // [V]
  Candidate* rearranged = nullptr;  // [V] the same, in any order
};

// The tokens still in the draw, in the order of their ids, and the sum of their weights.
struct Pool {
  Candidate* at;
  int64_t size = 0;
  double mass = 0.0;

  void reweigh() {
    mass = 0;
    for (int64_t i = 0; i < size; ++i) mass += at[i].weight;
  }
  template <class Keep>
  void keep_if(Keep keep) {
    size = std::remove_if(at, at + size, [&](const Candidate& c) { return !keep(c); }) - at;
    reweigh();
  }
};

bool modifies_logits(const SampleRow& row) {
  return !row.params->logit_bias.empty() || !row.suppressed.empty() || has_penalties(*row.params);
}
bool filters(const SamplingParams& p, int64_t vocab) {
  return (p.top_k > 0 && p.top_k < vocab) || p.typical_p < 1.0f || p.top_p < 1.0f || p.min_p > 0.0f;
}

void apply_penalties(float* logits, const SampleRow& row, const Scratch& s) {
  int64_t n = 0;
  constexpr int32_t kInPrompt = 1 << 30;  // above any count of the output
  for (const int32_t id : row.prompt) {
    if (s.counts[id] == 0) s.seen[n++] = id;
    s.counts[id] = kInPrompt;
  }
  for (const int32_t id : row.output)
    if (s.counts[id]++ == 0) s.seen[n++] = id;
  for (int64_t i = 0; i < n; ++i) {
    const int32_t id = s.seen[i];
    logits[id] = penalised(logits[id], true, s.counts[id] & (kInPrompt - 1), *row.params);
    s.counts[id] = 0;
  }
}

// Bias, suppression and penalties, on a copy. False if that leaves nothing possible.
bool modify(Row& r, const SampleRow& row, const Scratch& s) {
  std::memcpy(s.logits, r.logits, static_cast<size_t>(r.size) * sizeof(float));
  for (const auto& [id, bias] : row.params->logit_bias) s.logits[id] += bias;
  for (const int32_t id : row.suppressed) s.logits[id] = kMinusInf;
  if (has_penalties(*row.params)) apply_penalties(s.logits, row, s);
  r.logits = s.logits;
  return scan(r) && r.max > kMinusInf;
}

// The last of the shortest prefix, in ascending order of (key, id), whose weights reach `mass`: a quickselect
// that adds up weights. Rearranges c[0, n). Pivots come from a fixed sequence, so that the work, like the
// result, depends on the row alone, and no ordinary pattern of logits makes it quadratic.
template <class Key>
Candidate last_of_mass(Candidate* c, int64_t n, double mass, Key key) {
  const auto before = [&](const Candidate& a, const Candidate& b) {
    const auto ka = key(a), kb = key(b);
    return ka != kb ? ka < kb : a.id < b.id;
  };
  uint32_t random = 12345;
  double sum = 0;
  while (n > 32) {
    random = random * 1664525u + 1013904223u;
    const Candidate pivot = c[(static_cast<uint64_t>(random) * static_cast<uint64_t>(n)) >> 32];
    Candidate* middle = std::partition(c, c + n, [&](const Candidate& x) { return before(x, pivot); });
    double below = 0;
    for (Candidate* x = c; x < middle; ++x) below += x->weight;
    if (middle > c && sum + below >= mass) {
      n = middle - c;
      continue;
    }
    sum += below;
    if (sum + pivot.weight >= mass || middle - c == n - 1) return pivot;
    // Past the pivot, which the partition left somewhere in the upper part.
    std::swap(*std::find_if(middle, c + n, [&](const Candidate& x) { return x.id == pivot.id; }), *middle);
    sum += pivot.weight;
    n -= middle + 1 - c;
    c = middle + 1;
  }
  std::sort(c, c + n, before);
  int64_t i = 0;
  for (sum += c[0].weight; i < n - 1 && sum < mass; sum += c[i].weight) ++i;
  return c[i];
}

// Keeps the shortest prefix of the pool, by (key, id), that holds `mass` of weight; returns its last.
template <class Key>
Candidate keep_mass(Pool& pool, double mass, const Scratch& s, Key key) {
  std::copy(pool.at, pool.at + pool.size, s.rearranged);
  const Candidate last = last_of_mass(s.rearranged, pool.size, mass, key);
  const auto last_key = key(last);
  pool.keep_if([&](const Candidate& c) {
    const auto k = key(c);
    return k < last_key || (k == last_key && c.id <= last.id);
  });
  return last;
}

void collect(Pool& pool, const Row& r, float low, float high, const Softmax& softmax) {
  pool.size = gather(r, low, high, pool.at);
  pool.mass = weigh(pool.at, pool.size, softmax);
}

void top_k(Pool& pool, const Row& r, int64_t k, const Softmax& softmax, const Scratch& s) {
  pool.size = gather(r, at_least_k_reach(r, k, s.block_scratch), r.max, pool.at);
  if (pool.size > k) {
    std::copy(pool.at, pool.at + pool.size, s.rearranged);
    const auto larger = [](const Candidate& a, const Candidate& b) { return a.logit > b.logit; };
    std::nth_element(s.rearranged, s.rearranged + (k - 1), s.rearranged + pool.size, larger);
    const float threshold = s.rearranged[k - 1].logit;
    pool.keep_if([&](const Candidate& c) { return c.logit >= threshold; });
  }
  pool.mass = weigh(pool.at, pool.size, softmax);
}

// `complete`: the pool already holds every token that is possible; otherwise it is collected here.
void typical_p(Pool& pool, bool complete, const Row& r, float p, const Softmax& softmax, const Scratch& s) {
  double total = pool.mass, weighted = 0;
  if (complete) {
    for (int64_t i = 0; i < pool.size; ++i)
      weighted += pool.at[i].weight *
                  ((static_cast<double>(pool.at[i].logit) - softmax.max) * softmax.inverse_temperature);
  } else {
    total = sum_weights(r, softmax);
    weighted = sum_weighted_exponents(r, softmax);
  }
  // -log p = log(total) - exponent, and the entropy is its mean: only the mean exponent remains.
  const double centre = weighted / total, t = 1.0 / softmax.inverse_temperature;
  const auto distance = [&](const Candidate& c) {
    return std::abs((static_cast<double>(c.logit) - softmax.max) * softmax.inverse_temperature - centre);
  };
  if (complete) {
    keep_mass(pool, p * total, s, distance);
    return;
  }
  for (double reach = 2.0;; reach *= 2.0) {
    const bool all = reach > 64.0;
    const double low = softmax.max + (centre - reach) * t, high = softmax.max + (centre + reach) * t;
    collect(pool, r, all ? kMinusInf : static_cast<float>(low),
            all ? r.max : static_cast<float>(std::min<double>(high, r.max)), softmax);
    if (!all && (pool.size == 0 || pool.mass < p * total)) continue;
    // Distances near `reach` may have been cut off by rounding; then look further.
    const Pool collected = pool;
    if (const Candidate last = keep_mass(pool, p * total, s, distance); all || distance(last) < 0.999 * reach)
      return;
    pool = collected;
  }
}

void top_p(Pool& pool, bool complete, const Row& r, float p, const Softmax& softmax, const Scratch& s) {
  double total = pool.mass;
  if (!complete) {
    total = sum_weights(r, softmax);
    // e^-5, e^-10, ... of the largest weight: language models mostly need one or two steps.
    for (float depth = 5.0f;; depth *= 2.0f) {
      const bool all = depth > 80.0f;
      collect(pool, r, all ? kMinusInf : r.max - depth / softmax.inverse_temperature, r.max, softmax);
      if (all || pool.mass >= p * total) break;
    }
  }
  keep_mass(pool, p * total, s, [](const Candidate& c) { return -c.logit; });
}

void min_p(Pool& pool, bool complete, const Row& r, float p, const Softmax& softmax) {
  // A little more than needed: the weights decide.
  if (!complete)
    collect(pool, r, r.max + (std::log(p) - 0.01f) / softmax.inverse_temperature, r.max, softmax);
  float likeliest = 0;
  for (int64_t i = 0; i < pool.size; ++i) likeliest = std::max(likeliest, pool.at[i].weight);
  pool.keep_if([&](const Candidate& c) { return c.weight >= p * likeliest; });
}

int32_t draw_from(const Pool& pool, double u) {
  const double target = u * pool.mass;
  double sum = 0;
  int64_t last = 0;
  for (int64_t i = 0; i < pool.size; ++i) {
    if (pool.at[i].weight == 0.0f) continue;
    last = i;
    if (sum += pool.at[i].weight; target < sum) break;
  }
  return pool.at[last].id;
}

// Without filters: the block by its sum, then the token within it.
int32_t draw_from(const Row& r, const Softmax& softmax, double u, float* block_sum) {
  const double target = u * sum_weights(r, softmax, block_sum);
  double sum = 0;
  int64_t chosen = 0;
  for (int64_t b = 0; b < block_count(r.size); ++b) {
    if (block_sum[b] == 0.0f) continue;
    chosen = b;
    if (sum + block_sum[b] > target) break;
    sum += block_sum[b];
  }
  Candidate in_block[kBlock];
  Pool pool{in_block};
  const int64_t begin = chosen * kBlock, size = std::min(kBlock, r.size - begin);
  const Row block{r.logits + begin, size, r.block_max + chosen};
  collect(pool, block, kMinusInf, r.max, softmax);
  pool.reweigh();
  double within = sum;
  int64_t last = 0;
  for (int64_t i = 0; i < pool.size; ++i) {
    if (pool.at[i].weight == 0.0f) continue;
    last = i;
    if (within += pool.at[i].weight; target < within) break;
  }
  return static_cast<int32_t>(begin) + pool.at[last].id;
}

int32_t choose(const Row& r, const SampleRow& row, const Scratch& s) {
  const SamplingParams& p = *row.params;
  if (p.temperature < kGreedyBelow) return first_max(r);
  const Softmax softmax{r.max, 1.0f / p.temperature};
  const double u = sample_uniform(p.seed, row.position);
  if (!filters(p, r.size)) return draw_from(r, softmax, u, s.block_scratch);
  Pool pool{s.candidates};
  bool complete = false;  // the pool holds what the filters so far have left
  if (p.top_k > 0 && p.top_k < r.size) {
    top_k(pool, r, p.top_k, softmax, s);
    complete = true;
  }
  if (p.typical_p < 1.0f) {
    typical_p(pool, complete, r, p.typical_p, softmax, s);
    complete = true;
  }
  if (p.top_p < 1.0f) {
    top_p(pool, complete, r, p.top_p, softmax, s);
    complete = true;
  }
  if (p.min_p > 0.0f) min_p(pool, complete, r, p.min_p, softmax);
  return draw_from(pool, u);
}

// Log softmax of the raw logits.
struct Logprobs {
  double log_total;
  std::vector<TokenLogprob> top;
};
Logprobs logprobs(const Row& r, int n, const Scratch& s) {
  const Softmax softmax{r.max, 1.0f};
  Logprobs result{r.max + std::log(sum_weights(r, softmax)), {}};
  if (n == 0) return result;
  const int64_t found = gather(r, at_least_k_reach(r, n, s.block_scratch), r.max, s.candidates);
  const int64_t count = std::min<int64_t>(n, found);
  std::partial_sort(s.candidates, s.candidates + count, s.candidates + found,
                    [](const Candidate& a, const Candidate& b) {
                      return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
                    });
  for (int64_t i = 0; i < count; ++i)
    result.top.push_back({s.candidates[i].id, static_cast<float>(s.candidates[i].logit - result.log_total)});
  return result;
}

Sampled sample_row(const float* logits, int64_t vocab, const SampleRow& row, const Scratch& s) {
  Row r{logits, vocab, s.block_max};
  if (!scan(r) || r.max == kMinusInf) return {};
  Logprobs reported{};
  if (row.params->logprobs >= 0) reported = logprobs(r, row.params->logprobs, s);
  if (modifies_logits(row) && !modify(r, row, s)) return {};
  Sampled out;
  out.token = choose(r, row, s);
  if (row.params->logprobs >= 0) {
    out.logprob = static_cast<float>(logits[out.token] - reported.log_total);
    out.top = std::move(reported.top);
  }
  return out;
}

}  // namespace

void sample_cpu(const OpContext& ctx, const SampleArgs& a) {
  const int64_t rows = a.logits.dim(0), vocab = a.logits.dim(1);
  bool copies = false, penalties = false, lists = false;
  for (const SampleRow& row : a.rows) {
    copies |= modifies_logits(row);
    penalties |= has_penalties(*row.params);
    lists |= row.params->logprobs > 0 || filters(*row.params, vocab);
  }
  Workspace::Scope scope(ctx.workspace);
  std::vector<Scratch> scratch(
      static_cast<size_t>(std::min<int64_t>(ctx.pool.size(), std::max<int64_t>(rows, 1))));
  for (Scratch& s : scratch) {
    s.block_max = scope.take<float>(block_count(vocab));
    s.block_scratch = scope.take<float>(block_count(vocab));
    if (copies) s.logits = scope.take<float>(vocab);
    if (penalties) {
      s.counts = scope.take<int32_t>(vocab);
      s.seen = scope.take<int32_t>(vocab);
      std::memset(s.counts, 0, static_cast<size_t>(vocab) * sizeof(int32_t));
    }
    if (lists) {
      s.candidates = scope.take<Candidate>(vocab);
      s.rearranged = scope.take<Candidate>(vocab);
    }
  }
  // One task per scratch area, not per thread: a few rows on many threads need little memory.
  std::atomic<int64_t> next{0};
  ctx.pool.parallel_for(std::ssize(scratch), 1, [&](int64_t slot, int64_t, int) {
    for (int64_t r = next++; r < rows; r = next++)
      a.out[static_cast<size_t>(r)] = sample_row(
          a.logits.row<float>(r), vocab, a.rows[static_cast<size_t>(r)], scratch[static_cast<size_t>(slot)]);
  });
}

}  // namespace quire::sampling
