#include "eval/divergence.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/result.h"

namespace quire {
namespace {

// log softmax(x)[i] = x[i] - top - log_sum, in the order of log_probability().
struct Normaliser {
  TokenId argmax = -1;
  double top = 0.0, log_sum = 0.0;  // log_sum NaN when there is no distribution

  double logprob(float logit) const { return static_cast<double>(logit) - top - log_sum; }
};

// `exps`, if not null: [V], receives exp(logit - top).
Normaliser normaliser(std::span<const float> logits, double* exps) {
  const auto at = std::max_element(logits.begin(), logits.end());
  Normaliser n{.argmax = static_cast<TokenId>(at - logits.begin()), .top = static_cast<double>(*at)};
  double sum = 0.0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double e = std::exp(static_cast<double>(logits[i]) - n.top);
    if (exps != nullptr) exps[i] = e;
    sum += e;
  }
  // NaN anywhere, +infinity, or -infinity everywhere make the sum NaN.
  n.log_sum = std::log(sum);
  return n;
}

double sum_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

}  // namespace

double Divergence::delta_p() const {
  return std::exp(logprob_model) - std::exp(logprob_reference);
}

Divergence diverge(std::span<const float> reference, std::span<const float> model, TokenId token,
                   std::vector<double>& scratch) {
  QUIRE_CHECK(
      !reference.empty() && reference.size() == model.size() && token >= 0 && static_cast<size_t>(token) < model.size(),
      "{} and {} logits, token {}", reference.size(), model.size(), token);
  scratch.resize(reference.size());
  const Normaliser p = normaliser(reference, scratch.data()), q = normaliser(model, nullptr);
  const double scale = std::exp(-p.log_sum);
  double kl = 0.0;
  for (size_t i = 0; i < reference.size(); ++i) {
    if (scratch[i] == 0.0) continue;  // 0 log 0 = 0, whatever Q says
    kl += scratch[i] * scale * (p.logprob(reference[i]) - q.logprob(model[i]));
  }
  const auto t = static_cast<size_t>(token);
  return {.kl = kl < 0.0 ? 0.0 : kl,  // rounding
          .logprob_reference = p.logprob(reference[t]),
          .logprob_model = q.logprob(model[t]),
          .top_reference = p.argmax,
          .top_model = q.argmax};
}

std::vector<TokenProbability> likeliest(std::span<const float> logits, int64_t k) {
  const Normaliser n = normaliser(logits, nullptr);
  std::vector<TokenId> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto count = static_cast<std::ptrdiff_t>(std::min<size_t>(static_cast<size_t>(k), order.size()));
  const auto logit = [&](TokenId t) { return logits[static_cast<size_t>(t)]; };
  std::partial_sort(order.begin(), order.begin() + count, order.end(),
                    [&](TokenId a, TokenId b) { return logit(a) != logit(b) ? logit(a) > logit(b) : a < b; });
  std::vector<TokenProbability> out;
  for (TokenId t : std::span(order).first(static_cast<size_t>(count)))
    out.push_back({t, std::exp(n.logprob(logit(t)))});
  return out;
}

double quantile(std::span<const float> sorted, double q) {
  QUIRE_CHECK(!sorted.empty() && q >= 0.0 && q <= 1.0, "quantile {} of {} values", q, sorted.size());
  const double place = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(place);
  const double low = static_cast<double>(sorted[below]), share = place - static_cast<double>(below);
  if (share == 0.0 || below + 1 == sorted.size()) return low;
  const auto high = static_cast<double>(sorted[below + 1]);
  return low == high ? low : low + share * (high - low);  // equal infinities have no difference
}

void DivergenceStats::add(const Divergence& d) {
  if (positions() % per_window_ == 0) {
    window_nll_reference_.push_back(0.0);
    window_nll_model_.push_back(0.0);
  }
  kl_.push_back(static_cast<float>(d.kl));
  sum_ += d.kl;
  squared_delta_p_ += d.delta_p() * d.delta_p();
  window_nll_reference_.back() -= d.logprob_reference;
  window_nll_model_.back() -= d.logprob_model;
  agreeing_ += d.top_reference == d.top_model;
}

DivergenceSummary DivergenceStats::summary() const {
  QUIRE_CHECK(!kl_.empty() && positions() % per_window_ == 0, "{} positions in windows of {}", positions(),
              per_window_);
  const auto n = static_cast<double>(kl_.size());
  std::vector<float> sorted = kl_;
  std::sort(sorted.begin(), sorted.end());
  DivergenceSummary s;
  s.positions = positions();
  s.nll_reference = sum_of(window_nll_reference_);
  s.nll_model = sum_of(window_nll_model_);
  s.perplexity_reference = std::exp(s.nll_reference / n);
  s.perplexity_model = std::exp(s.nll_model / n);
  s.mean = sum_ / n;
  s.median = quantile(sorted, 0.5);
  s.p90 = quantile(sorted, 0.9);
  s.p99 = quantile(sorted, 0.99);
  s.max = static_cast<double>(sorted.back());
  if (kl_.size() > 1) {
    double squares = 0.0;
    for (float x : kl_) squares += (static_cast<double>(x) - s.mean) * (static_cast<double>(x) - s.mean);
    s.standard_error = std::sqrt(squares / (n - 1.0) / n);
  }
  s.top1_agreement = static_cast<double>(agreeing_) / n;
  s.rms_delta_p = std::sqrt(squared_delta_p_ / n);
  return s;
}

std::vector<PositionBin> DivergenceStats::by_position(int64_t bins) const {
  QUIRE_CHECK(!kl_.empty() && positions() % per_window_ == 0 && bins > 0, "{} positions in windows of {}", positions(),
              per_window_);
  const int64_t width = (per_window_ + bins - 1) / bins;
  std::vector<PositionBin> out;
  std::vector<float> values;
  for (int64_t first = 0; first < per_window_; first += width) {
    const int64_t last = std::min(first + width, per_window_) - 1;
    values.clear();
    for (int64_t window = 0; window < positions(); window += per_window_)
      values.insert(values.end(), kl_.begin() + window + first, kl_.begin() + window + last + 1);
    std::sort(values.begin(), values.end());
    const double sum = std::accumulate(values.begin(), values.end(), 0.0);
    out.push_back({first, last, sum / static_cast<double>(values.size()), quantile(values, 0.9)});
  }
  return out;
}

}  // namespace quire
