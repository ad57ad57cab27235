// The reference: one step after another over whole, sorted distributions in float64.
#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>

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

std::vector<float> modified_logits(std::span<const float> raw, const SampleRow& row) {
  const SamplingParams& p = *row.params;
  std::vector<float> logits(raw.begin(), raw.end());
  for (const auto& [id, bias] : p.logit_bias) logits[static_cast<size_t>(id)] += bias;
  for (const int32_t id : row.suppressed) logits[static_cast<size_t>(id)] = kMinusInf;
  std::unordered_map<int32_t, int> output_count;  // 0: in the prompt only
  for (const int32_t id : row.prompt) output_count[id];
  for (const int32_t id : row.output) ++output_count[id];
  for (const auto& [id, count] : output_count) {
    float& logit = logits[static_cast<size_t>(id)];
    logit = penalised(logit, true, count, p);
  }
  return logits;
}

}  // namespace

std::vector<TokenProbability> reference_distribution(std::span<const float> raw, const SampleRow& row) {
  const SamplingParams& p = *row.params;
  const std::vector<float> logits = modified_logits(raw, row);
  const auto best = std::max_element(logits.begin(), logits.end());  // the first of equals
  if (!std::isfinite(*best)) return {};
  if (p.temperature < kGreedyBelow) return {{static_cast<int32_t>(best - logits.begin()), 1.0}};

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
  if (p.top_p < 1.0f)
    keep_mass(tokens, p.top_p, [](const Token& t) { return -static_cast<double>(t.logit); });
  if (p.min_p > 0.0f) {
    double likeliest = 0;
    for (const Token& t : tokens) likeliest = std::max(likeliest, t.p);
    std::erase_if(tokens, [&](const Token& t) { return t.p < p.min_p * likeliest; });
    normalise(tokens);
  }
  std::sort(tokens.begin(), tokens.end(), [](const Token& a, const Token& b) { return a.id < b.id; });
  std::vector<TokenProbability> distribution;
  distribution.reserve(tokens.size());
  for (const Token& t : tokens) distribution.push_back({t.id, t.p});
  return distribution;
}

namespace {

int32_t draw(const std::vector<TokenProbability>& distribution, const SampleRow& row) {
  if (distribution.empty()) return -1;
  const double u = sample_uniform(row.params->seed, row.position);
  double sum = 0;
  for (const TokenProbability& t : distribution)
    if (sum += t.p; u < sum) return t.id;
  return distribution.back().id;  // the probabilities add up to a little less than 1
}

void report_logprobs(std::span<const float> raw, int n, Sampled& out) {
  const double max = *std::max_element(raw.begin(), raw.end());
  double sum = 0;
  for (const float x : raw) sum += std::exp(x - max);
  const auto logprob = [&](float x) { return static_cast<float>(x - max - std::log(sum)); };
  out.logprob = logprob(raw[static_cast<size_t>(out.token)]);
  for (size_t i = 0; i < raw.size(); ++i)
    if (raw[i] != kMinusInf) out.top.push_back({static_cast<int32_t>(i), raw[i]});
  std::stable_sort(out.top.begin(), out.top.end(),
                   [](const TokenLogprob& a, const TokenLogprob& b) { return a.logprob > b.logprob; });
  out.top.resize(std::min(out.top.size(), static_cast<size_t>(n)));
  for (TokenLogprob& t : out.top) t.logprob = logprob(t.logprob);
}

}  // namespace

void sample_reference(const OpContext&, const SampleArgs& a) {
  for (int64_t r = 0; r < a.logits.dim(0); ++r) {
    const std::span<const float> raw(a.logits.row<float>(r), static_cast<size_t>(a.logits.dim(1)));
    const SampleRow& row = a.rows[static_cast<size_t>(r)];
    Sampled& out = a.out[static_cast<size_t>(r)];
    out = {};
    if (std::any_of(raw.begin(), raw.end(),
                    [](float x) { return !(x <= std::numeric_limits<float>::max()); }))
      continue;
    out.token = draw(reference_distribution(raw, row), row);
    if (out.token >= 0 && row.params->logprobs >= 0) report_logprobs(raw, row.params->logprobs, out);
  }
}

}  // namespace quire::sampling
