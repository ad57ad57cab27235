// Sampling without sorting the vocabulary: vector passes over the logits (scan.h) find a short list of
// candidates, and everything after works on the list. CPU time of one row of 248320 logits on one core with AVX-512
// (bench.cpp): greedy 18 us, temperature alone 105 us (AVX2: 200 us), top-k 20 with top-p 23 us, top-p 107 us,
// typical-p 530 us; top-p 0.95 of a flat distribution (a list of 100000 tokens) 2.1 ms.
#include <atomic>
#include <cmath>

#include "ops/sampling/draw.h"
#include "ops/sampling/internal.h"

namespace quire::sampling {
namespace {

// Scratch memory of one task. Pointers that no row of the call needs are null.
struct Scratch {
  float* block_max;       // [blocks]
  float* block_scratch;   // [blocks]
  uint32_t* noise_limit;  // [blocks]
  float* logits;          // [V] a modified copy of a row
  Candidate* candidates;  // [V + 64]
  Candidate* rearranged;  // [V + 64] for selection, in any order
};

// The tokens still in the draw, in the order of their ids.
struct Pool {
  Candidate* at;
  int64_t size = 0;

  double mass() const {
    double sum = 0;
    for (int64_t i = 0; i < size; ++i) sum += at[i].weight;
    return sum;
  }
  template <class Keep>
  void keep_if(Keep keep) {
    size = std::remove_if(at, at + size, [&](const Candidate& c) { return !keep(c); }) - at;
  }
  // Keeps the tokens up to `last` in the order of (key, id).
  template <class Key>
  void cut_after(const Candidate& last, Key key) {
    const auto border = key(last);
    keep_if([&](const Candidate& c) {
      const auto k = key(c);
      return k < border || (k == border && c.id <= last.id);
    });
  }
};

bool modifies_logits(const SampleArgs& a, const SampleRow& row) {
  return row.bias_count > 0 || a.suppressed_count > 0 || row.mask >= 0 || has_penalties(row);
}
bool filters(const SampleRow& p, int64_t vocab) {
  return (p.top_k > 0 && p.top_k < vocab) || p.typical_p < 1.0f || p.top_p < 1.0f || p.min_p > 0.0f;
}

// What the history of a row lacks: distinct tokens, how often each, and their logits before penalties.
class Unnoted {
 public:
  Unnoted(const SampleArgs& a, const SampleRow& row, const float* logits) {
    for (int32_t i = 0; i < row.unnoted_count; ++i) add(a.bias_ids[row.unnoted_begin + i], logits);
    for (int32_t i = 0; i < row.drafts_count; ++i) add(a.out.sampled.as<int32_t>()[row.drafts_begin + i], logits);
  }
  void apply(float* logits, const int32_t* counts, const SampleRow& row) const {
    for (int32_t i = 0; i < size_; ++i)
      logits[all_[i].token] = penalised(all_[i].logit, counts[all_[i].token] + all_[i].count, row);
  }

 private:
  struct Entry {
    int32_t token, count;
    float logit;
  };
  void add(int32_t token, const float* logits) {
    for (int32_t i = 0; i < size_; ++i)
      if (all_[i].token == token) return void(++all_[i].count);
    QUIRE_CHECK(size_ < kMostUnnoted, "more than {} tokens that a history lacks", kMostUnnoted);
    all_[size_++] = {token, 1, logits[token]};
  }

  Entry all_[kMostUnnoted];
  int32_t size_ = 0;
};

void apply_penalties(float* logits, const SampleArgs& a, const SampleRow& row) {
  const TokenHistory& h = a.history;
  const int32_t* const counts = h.counts + int64_t{row.history} * h.vocab;
  const int32_t* const seen = h.seen + int64_t{row.history} * h.capacity;
  const Unnoted unnoted(a, row, logits);
  for (int32_t i = 0; i < h.seen_count[row.history]; ++i)
    logits[seen[i]] = penalised(logits[seen[i]], counts[seen[i]], row);
  unnoted.apply(logits, counts, row);
}

void apply_mask(float* logits, int64_t vocab, const uint32_t* mask) {
  for (int64_t word = 0; word < mask_words(vocab); ++word) {
    const int64_t first = word * 32, count = std::min<int64_t>(32, vocab - first);
    uint32_t refused = ~mask[word];
    if (count < 32) refused &= (1u << count) - 1;
    if (refused == 0) continue;
    for (int64_t i = 0; i < count; ++i)
      if ((refused >> i & 1) != 0) logits[first + i] = kMinusInf;
  }
}

// Bias, suppression, mask and penalties, on a copy. False if that leaves nothing possible.
bool modify(Row& r, const SampleArgs& a, const SampleRow& row, const Scratch& s) {
  std::memcpy(s.logits, r.logits, static_cast<size_t>(r.size) * sizeof(float));
  for (int32_t i = row.bias_begin; i < row.bias_begin + row.bias_count; ++i)
    s.logits[a.bias_ids[i]] += a.bias_values[i];
  for (int32_t i = 0; i < a.suppressed_count; ++i) s.logits[a.suppressed[i]] = kMinusInf;
  if (row.mask >= 0) apply_mask(s.logits, r.size, a.masks + row.mask * mask_words(r.size));
  if (has_penalties(row)) apply_penalties(s.logits, a, row);
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

// Keeps the shortest prefix of the pool, by (key, id), that holds `mass` of weight.
template <class Key>
void keep_mass(Pool& pool, double mass, const Scratch& s, Key key) {
  std::copy(pool.at, pool.at + pool.size, s.rearranged);
  pool.cut_after(last_of_mass(s.rearranged, pool.size, mass, key), key);
}

enum class Amount { kWeight, kCount };

// The last token of the shortest prefix of a whole row, in ascending order of (order(token), id), whose
// weights (or number) reach `target`. A histogram of key8, which must rise with `order`, finds the bin of the
// border; only the tokens of that bin are looked at one by one.
template <class Key8, class Order>
Candidate find_last(const Row& r, const Softmax& softmax, Amount amount, double target, const Scratch& s, Key8 key8,
                    Order order) {
  double bins[kBins];
  add_to_bins(r, bins, key8, [&](const float* x) {
    return amount == Amount::kCount ? _mm256_set1_ps(1.0f) : exp8(softmax.exponent(x));
  });
  double sum = 0;
  int bin = 0;
  while (bin < kBins - 1 && sum + bins[bin] < target) sum += bins[bin++];
  const __m256i border = _mm256_set1_epi32(bin);
  const int64_t n = gather(r, kMinusInf, r.size, s.rearranged, [&](const float* x) {
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(bin8(key8(x)), border));
  });
  // Only impossible tokens there: every possible one is before the border.
  if (n == 0) return {kMinusInf, 0.0f, std::numeric_limits<int32_t>::max()};
  weigh(s.rearranged, n, softmax);
  if (amount == Amount::kCount)
    for (int64_t i = 0; i < n; ++i) s.rearranged[i].weight = 1.0f;
  return last_of_mass(s.rearranged, n, target - sum, order);
}

// The order of top-k and top-p.
float likeliest_first(const Candidate& c) {
  return -c.logit;
}
Candidate find_last_by_logit(const Row& r, const Softmax& softmax, Amount amount, double target, const Scratch& s) {
  const auto key8 = [&](const float* x) { return _mm256_sub_ps(_mm256_setzero_ps(), softmax.exponent(x)); };
  return find_last(r, softmax, amount, target, s, key8, likeliest_first);
}

void top_k(Pool& pool, const Row& r, int64_t k, const Softmax& softmax, const Scratch& s) {
  float low = at_least_k_reach(r, k, s.block_scratch);
  if (low == kMinusInf) low = find_last_by_logit(r, softmax, Amount::kCount, static_cast<double>(k), s).logit;
  pool.size = gather_above(r, low, pool.at);
  if (pool.size > k) {
    std::copy(pool.at, pool.at + pool.size, s.rearranged);
    const auto larger = [](const Candidate& a, const Candidate& b) { return a.logit > b.logit; };
    std::nth_element(s.rearranged, s.rearranged + (k - 1), s.rearranged + pool.size, larger);
    const float threshold = s.rearranged[k - 1].logit;
    pool.keep_if([&](const Candidate& c) { return c.logit >= threshold; });
  }
  weigh(pool.at, pool.size, softmax);
}

// `complete`: the pool holds what the filters before have left; otherwise nothing was filtered yet and the
// pool is to be collected here. So too in top_p and min_p.
void typical_p(Pool& pool, bool complete, const Row& r, float p, const Softmax& softmax, const Scratch& s) {
  double total = 0, weighted = 0;
  if (complete) {
    total = pool.mass();
    for (int64_t i = 0; i < pool.size; ++i)
      if (pool.at[i].weight > 0)
        weighted += static_cast<double>(pool.at[i].weight) * softmax.exponent(pool.at[i].logit);
  } else {
    total = sum_weights(r, softmax);
    weighted = sum_weighted_exponents(r, softmax);
  }
  // -log p = log(total) - exponent, and the entropy is its mean: what remains is the distance of the
  // exponents from their mean.
  const auto mean = static_cast<float>(weighted / total);
  const auto distance = [&](const Candidate& c) { return std::abs(softmax.exponent(c.logit) - mean); };
  const auto distance8 = [&](const float* x) {
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), _mm256_sub_ps(softmax.exponent(x), _mm256_set1_ps(mean)));
  };
  if (complete) return keep_mass(pool, p * total, s, distance);
  const Candidate last = find_last(r, softmax, Amount::kWeight, p * total, s, distance8, distance);
  const __m256 reach = _mm256_set1_ps(distance(last));
  pool.size = gather(r, kMinusInf, r.size, pool.at,
                     [&](const float* x) { return _mm256_cmp_ps(distance8(x), reach, _CMP_LE_OQ); });
  weigh(pool.at, pool.size, softmax);
  pool.cut_after(last, distance);
}

void top_p(Pool& pool, bool complete, const Row& r, float p, const Softmax& softmax, const Scratch& s) {
  if (complete) return keep_mass(pool, p * pool.mass(), s, likeliest_first);
  const double target = p * sum_weights(r, softmax);
  // Language models mostly need few tokens: those within e^-5 or e^-10 of the likeliest.
  const int64_t few = r.size / 16;
  for (const float depth : {5.0f, 10.0f}) {
    pool.size = gather_above(r, r.max - depth / softmax.inverse_temperature, pool.at, few);
    if (pool.size > few) break;
    if (weigh(pool.at, pool.size, softmax) >= target) return keep_mass(pool, target, s, likeliest_first);
  }
  const Candidate last = find_last_by_logit(r, softmax, Amount::kWeight, target, s);
  pool.size = gather_above(r, last.logit, pool.at);
  weigh(pool.at, pool.size, softmax);
  pool.cut_after(last, likeliest_first);
}

void min_p(Pool& pool, bool complete, const Row& r, float p, const Softmax& softmax) {
  if (!complete) {  // a little more than needed: the weights decide
    pool.size = gather_above(r, r.max + (std::log(p) - 0.01f) / softmax.inverse_temperature, pool.at);
    weigh(pool.at, pool.size, softmax);
  }
  float likeliest = 0;
  for (int64_t i = 0; i < pool.size; ++i) likeliest = std::max(likeliest, pool.at[i].weight);
  pool.keep_if([&](const Candidate& c) { return c.weight >= p * likeliest; });
}

// The column drawn.
int32_t choose(const Row& r, const SampleArgs& a, const SampleRow& p, const NoiseCpu& noise, const Scratch& s) {
  if (p.temperature < kGreedyBelow) return first_max(r);
  const Softmax softmax{r.max, 1.0f / p.temperature};
  Draw draw(noise, {p.seed, p.position}, softmax.inverse_temperature, a.ids);
  if (!filters(p, r.size)) return draw.from(r, s.noise_limit);
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
  return draw.from(pool.at, pool.size, softmax);
}

// Writes the likeliest tokens of row `at`, and returns the logarithm of what softmax divides by: of the raw
// logits.
double report_likeliest(const SampleArgs& a, int64_t at, const Row& r, const Scratch& s) {
  const Softmax softmax{r.max, 1.0f};
  const double log_total = r.max + std::log(sum_weights(r, softmax));
  const int64_t n = std::min<int64_t>(a.rows[at].logprobs, a.out.top_ids.dim(1));
  if (n == 0) return log_total;
  const int64_t found = gather_above(r, at_least_k_reach(r, n, s.block_scratch), s.candidates);
  const int64_t count = std::min(n, found);
  std::partial_sort(
      s.candidates, s.candidates + count, s.candidates + found,
      [](const Candidate& x, const Candidate& y) { return x.logit != y.logit ? x.logit > y.logit : x.id < y.id; });
  for (int64_t i = 0; i < count; ++i) {
    a.out.top_ids.row<int32_t>(at)[i] = s.candidates[i].id;
    a.out.top_logprobs.row<float>(at)[i] = static_cast<float>(s.candidates[i].logit - log_total);
  }
  a.out.top_count.as<int32_t>()[at] = static_cast<int32_t>(count);
  return log_total;
}

// The token of row `at`, -1 if there is none; writes the logarithms of probabilities that the row asks for.
int32_t sample_row(const SampleArgs& a, int64_t at, const NoiseCpu& noise, const Scratch& s) {
  const SampleRow& row = a.rows[at];
  const float* const logits = a.logits.row<float>(at);
  float& logprob = a.out.logprobs.as<float>()[at];
  int32_t& top_count = a.out.top_count.as<int32_t>()[at];
  logprob = 0.0f;
  top_count = 0;
  if (!a.out.ranks.empty()) a.out.ranks.as<int32_t>()[at] = 0;
  if ((row.flags & kSampleIdle) != 0) return -1;
  Row r{logits, a.logits.dim(1), s.block_max};
  if (!scan(r) || r.max == kMinusInf) return -1;
  const double log_total = row.logprobs >= 0 ? report_likeliest(a, at, r, s) : 0.0;
  if (row.target >= 0) {
    logprob = static_cast<float>(logits[row.target] - log_total);
    a.out.ranks.as<int32_t>()[at] = 1 + static_cast<int32_t>(count_above(r, logits[row.target]));
    return row.target;
  }
  if (modifies_logits(a, row) && !modify(r, a, row, s)) {
    top_count = 0;
    return -1;
  }
  const int32_t column = choose(r, a, row, noise, s);
  if (row.logprobs >= 0) logprob = static_cast<float>(logits[column] - log_total);
  return token_of(a, column);
}

// What the rows of a call need, for each of `count` tasks.
Scratch* take_scratch(Workspace::Scope& scope, const SampleArgs& a, int64_t count) {
  const int64_t rows = a.logits.dim(0), vocab = a.logits.dim(1);
  bool copies = false, lists = false;
  for (int64_t r = 0; r < rows; ++r) {
    if ((a.rows[r].flags & kSampleIdle) != 0) continue;
    const bool draws = a.rows[r].target < 0;
    copies |= draws && modifies_logits(a, a.rows[r]);
    lists |= a.rows[r].logprobs > 0 || (draws && filters(a.rows[r], vocab));
  }
  auto* const scratch = scope.take<Scratch>(count);
  for (int64_t i = 0; i < count; ++i)
    scratch[i] = {.block_max = scope.take<float>(block_count(vocab)),
                  .block_scratch = scope.take<float>(block_count(vocab)),
                  .noise_limit = scope.take<uint32_t>(block_count(vocab)),
                  .logits = copies ? scope.take<float>(vocab) : nullptr,
                  .candidates = lists ? scope.take<Candidate>(vocab + kBlock) : nullptr,
                  .rearranged = lists ? scope.take<Candidate>(vocab + kBlock) : nullptr};
  return scratch;
}

void sample_rows(const OpContext& ctx, const SampleArgs& a, const NoiseCpu& noise) {
  const int64_t rows = a.logits.dim(0);
  if (rows == 0) return;
  // One task per scratch area, not per thread: a few rows on many threads need little memory.
  const int64_t tasks = std::min<int64_t>(ctx.pool.size(), rows);
  Workspace::Scope scope(ctx.workspace);
  const Scratch* const scratch = take_scratch(scope, a, tasks);
  std::atomic<int64_t> next{0};
  ctx.pool.parallel_for(tasks, 1, [&](int64_t task, int64_t, int) {
    for (int64_t r = next++; r < rows; r = next++) {
      const int32_t token = sample_row(a, r, noise, scratch[task]);
      a.out.tokens.as<int32_t>()[r] = token;
      if ((a.rows[r].flags & kSampleIdle) == 0) settle(a, a.rows[r], token);
    }
  });
}

}  // namespace

void sample_avx2(const OpContext& ctx, const SampleArgs& a) {
  sample_rows(ctx, a, kNoiseAvx2);
}
void sample_avx512(const OpContext& ctx, const SampleArgs& a) {
  if constexpr (kOnX86) sample_rows(ctx, a, kNoiseAvx512);
}

}  // namespace quire::sampling

namespace quire {

int64_t sample_workspace_bytes(int64_t rows, int64_t vocab, int threads) {
  using namespace sampling;
  const auto taken = [](int64_t bytes) { return (bytes + 63) / 64 * 64; };  // Workspace's alignment
  const auto f32 = static_cast<int64_t>(sizeof(float)), candidate = static_cast<int64_t>(sizeof(Candidate));
  const int64_t tasks = std::min<int64_t>(threads, rows);
  return taken(tasks * static_cast<int64_t>(sizeof(Scratch))) +
         tasks * (3 * taken(block_count(vocab) * f32) + taken(vocab * f32) + 2 * taken((vocab + kBlock) * candidate));
}

}  // namespace quire
