// The reference: one step after another over whole, sorted distributions in float64.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/sampling/internal.h"

namespace quire::sampling {
namespace {

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

struct Token {
  int32_t id;
  float logit;
  double p;
};

void normalise(std::vector<Token>& tokens) {
  double sum = 0;
  for (const Token& t : tokens) sum += t.p;
  for (Token& t : tokens) t.p /= sum;
}

// Keeps the shortest prefix, in ascending order of (key, id), whose probabilities reach `mass`.
template <class Key>
void keep_mass(std::vector<Token>& tokens, double mass, Key key) {
  std::sort(tokens.begin(), tokens.end(), [&](const Token& a, const Token& b) {
    const double ka = key(a), kb = key(b);
    return ka != kb ? ka < kb : a.id < b.id;
  });
  double sum = 0;
  size_t n = 0;
  while (n < tokens.size() && (n == 0 || sum < mass)) sum += tokens[n++].p;
  tokens.resize(n);
  normalise(tokens);
}

std::vector<float> modified_logits(const SampleArgs& a, int64_t r) {
  const SampleRow& row = a.rows[r];
  const float* const raw = a.logits.row<float>(r);
  std::vector<float> logits(raw, raw + a.logits.dim(1));
  for (int32_t i = row.bias_begin; i < row.bias_begin + row.bias_count; ++i)
    logits[static_cast<size_t>(a.bias_ids[i])] += a.bias_values[i];
  for (int32_t i = 0; i < a.suppressed_count; ++i) logits[static_cast<size_t>(a.suppressed[i])] = kMinusInf;
  if (row.mask >= 0) {
    const uint32_t* const mask = a.masks + row.mask * mask_words(a.logits.dim(1));
    for (size_t id = 0; id < logits.size(); ++id)
      if ((mask[id / 32] >> (id % 32) & 1) == 0) logits[id] = kMinusInf;
  }
  if (!has_penalties(row)) return logits;
  const int32_t* const noted = a.history.counts + int64_t{row.history} * a.history.vocab;
  std::vector<int32_t> counts(noted, noted + logits.size());
  for (int32_t i = 0; i < row.unnoted_count; ++i) ++counts[static_cast<size_t>(a.bias_ids[row.unnoted_begin + i])];
  for (int32_t i = 0; i < row.drafts_count; ++i)
    ++counts[static_cast<size_t>(a.out.sampled.as<int32_t>()[row.drafts_begin + i])];
  for (size_t id = 0; id < logits.size(); ++id)
    if (counts[id] != 0) logits[id] = penalised(logits[id], counts[id], row);
  return logits;
}

}  // namespace

std::vector<TokenProbability> reference_distribution(const SampleArgs& a, int64_t r) {
  const SampleRow& p = a.rows[r];
  const std::vector<float> logits = modified_logits(a, r);
  const auto best = std::max_element(logits.begin(), logits.end());  // the first of equals
  if (!std::isfinite(*best)) return {};
  if (p.temperature < kGreedyBelow) return {{static_cast<int32_t>(best - logits.begin()), *best, 1.0}};

  std::vector<Token> tokens;
  float threshold = kMinusInf;
  if (p.top_k > 0 && p.top_k < std::ssize(logits)) {
    std::vector<float> sorted = logits;
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    threshold = sorted[static_cast<size_t>(p.top_k - 1)];
  }
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] < threshold || logits[i] == kMinusInf) continue;
    const double x = (static_cast<double>(logits[i]) - *best) / p.temperature;
    tokens.push_back({static_cast<int32_t>(i), logits[i], std::exp(x)});
  }
  normalise(tokens);
  if (p.typical_p < 1.0f) {
    double entropy = 0;
    for (const Token& t : tokens) entropy -= t.p > 0 ? t.p * std::log(t.p) : 0.0;
    keep_mass(tokens, p.typical_p, [&](const Token& t) { return std::abs(-std::log(t.p) - entropy); });
  }
  if (p.top_p < 1.0f) keep_mass(tokens, p.top_p, [](const Token& t) { return -static_cast<double>(t.logit); });
  if (p.min_p > 0.0f) {
    double likeliest = 0;
    for (const Token& t : tokens) likeliest = std::max(likeliest, t.p);
    std::erase_if(tokens, [&](const Token& t) { return t.p < p.min_p * likeliest; });
    normalise(tokens);
  }
  std::sort(tokens.begin(), tokens.end(), [](const Token& x, const Token& y) { return x.id < y.id; });
  std::vector<TokenProbability> distribution;
  distribution.reserve(tokens.size());
  for (const Token& t : tokens) distribution.push_back({t.id, t.logit, t.p});
  return distribution;
}

int32_t reference_draw(const SampleArgs& a, int64_t r, const std::vector<TokenProbability>& distribution) {
  const SampleRow& row = a.rows[r];
  if (row.temperature < kGreedyBelow) return distribution.empty() ? -1 : distribution[0].column;
  int32_t best = -1;
  float most = kMinusInf;
  for (const TokenProbability& t : distribution) {
    const float noise = gumbel_noise(row.seed, row.position, token_of(a, t.column));
    const float score = draw_score(t.logit, 1.0f / row.temperature, noise);
    if (score > most) best = t.column, most = score;
  }
  return best;
}

namespace {

// Log softmax of the raw logits.
void report_logprobs(const SampleArgs& a, int64_t r, int32_t column) {
  const std::span<const float> raw(a.logits.row<float>(r), static_cast<size_t>(a.logits.dim(1)));
  const double max = *std::max_element(raw.begin(), raw.end());
  double sum = 0;
  for (const float x : raw) sum += std::exp(x - max);
  const auto logprob = [&](float x) { return static_cast<float>(x - max - std::log(sum)); };
  a.out.logprobs.as<float>()[r] = logprob(raw[static_cast<size_t>(column)]);
  std::vector<int32_t> possible;
  for (size_t i = 0; i < raw.size(); ++i)
    if (raw[i] != kMinusInf) possible.push_back(static_cast<int32_t>(i));
  const auto logit = [&](int32_t id) { return raw[static_cast<size_t>(id)]; };
  std::stable_sort(possible.begin(), possible.end(), [&](int32_t x, int32_t y) { return logit(x) > logit(y); });
  const int64_t n = std::min({std::ssize(possible), int64_t{a.rows[r].logprobs}, a.out.top_ids.dim(1)});
  for (int64_t i = 0; i < n; ++i) {
    a.out.top_ids.row<int32_t>(r)[i] = possible[static_cast<size_t>(i)];
    a.out.top_logprobs.row<float>(r)[i] = logprob(logit(possible[static_cast<size_t>(i)]));
  }
  a.out.top_count.as<int32_t>()[r] = static_cast<int32_t>(n);
}

bool damaged(const SampleArgs& a, int64_t r) {
  const float* const raw = a.logits.row<float>(r);
  return std::any_of(raw, raw + a.logits.dim(1), [](float x) { return !(x <= std::numeric_limits<float>::max()); });
}

// The column of a row that is neither idle nor damaged; -1 if none is possible.
int32_t column_of(const SampleArgs& a, int64_t r) {
  const SampleRow& row = a.rows[r];
  if (row.target < 0) return reference_draw(a, r, reference_distribution(a, r));
  const float* const raw = a.logits.row<float>(r);
  return *std::max_element(raw, raw + a.logits.dim(1)) > kMinusInf ? row.target : -1;
}

int32_t rank_of(const SampleArgs& a, int64_t r, int32_t column) {
  const float* const raw = a.logits.row<float>(r);
  return 1 + static_cast<int32_t>(std::count_if(raw, raw + a.logits.dim(1), [&](float x) { return x > raw[column]; }));
}

}  // namespace

void sample_reference(const OpContext&, const SampleArgs& a) {
  for (int64_t r = 0; r < a.logits.dim(0); ++r) {
    const SampleRow& row = a.rows[r];
    const bool idle = (row.flags & kSampleIdle) != 0;
    const int32_t column = idle || damaged(a, r) ? -1 : column_of(a, r);
    const int32_t token = column < 0 ? -1 : token_of(a, column);
    a.out.tokens.as<int32_t>()[r] = token;
    a.out.logprobs.as<float>()[r] = 0.0f;
    a.out.top_count.as<int32_t>()[r] = 0;
    if (!a.out.ranks.empty()) a.out.ranks.as<int32_t>()[r] = token >= 0 && row.target >= 0 ? rank_of(a, r, column) : 0;
    if (token >= 0 && row.logprobs >= 0) report_logprobs(a, r, column);
    if (!idle) settle(a, row, token);
  }
}

}  // namespace quire::sampling
