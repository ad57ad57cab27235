// How far the predictions of one model are from those of another, the reference, over the positions of a
// text. All in natural logarithms ("nats") and float64.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/id.h"

namespace quire {

// Of one position: reference distribution P, model distribution Q, and the token that really follows.
struct Divergence {
  double kl = 0.0;                 // KL(P || Q) >= 0; infinite where Q excludes what P does not
  double logprob_reference = 0.0;  // log P(token); NaN when the reference's logits are not numbers
  double logprob_model = 0.0;      // log Q(token); NaN when the model's logits are not numbers
  TokenId top_reference = -1;      // likeliest token, the lowest id among equals
  TokenId top_model = -1;

  double delta_p() const;  // Q(token) - P(token)
};

// reference and model: logits [V]; -infinity excludes a token. Equal logits give exactly 0; the
// log-probabilities are those of log_probability(). `scratch` is working memory, kept between calls.
Divergence diverge(std::span<const float> reference, std::span<const float> model, TokenId token,
                   std::vector<double>& scratch);

struct TokenProbability {
  TokenId token = -1;
  double probability = 0.0;
};
// The k likeliest tokens of logits [V], likeliest first, the lowest id first among equals.
std::vector<TokenProbability> likeliest(std::span<const float> logits, int64_t k);

// The value below which the share q of the values lies: linear between neighbours in order, as numpy does it.
// `sorted` ascending, at least one; 0 <= q <= 1.
double quantile(std::span<const float> sorted, double q);

struct DivergenceSummary {
  int64_t positions = 0;
  double nll_reference = 0.0, nll_model = 0.0;  // sums of -log p
  double perplexity_reference = 0.0, perplexity_model = 0.0;
  double mean = 0.0, median = 0.0, p90 = 0.0, p99 = 0.0, max = 0.0;  // of KL
  double standard_error = 0.0;  // of the mean, positions taken as independent; 0 for a single one
  double top1_agreement = 0.0;  // share of positions with the same likeliest token
  double rms_delta_p = 0.0;     // root mean square of Q(token) - P(token)
};

// KL of the positions first ... last of all windows.
struct PositionBin {
  int64_t first = 0, last = 0;
  double mean = 0.0, p90 = 0.0;
};

// Collects the positions of windows of one length. Keeps a float per position, so that quantiles are exact.
class DivergenceStats {
 public:
  // `per_window` positions each: 0 ... per_window - 1 is the place in the window.
  explicit DivergenceStats(int64_t per_window) : per_window_(per_window) {}

  // In order, whole windows.
  void add(const Divergence& d);

  int64_t positions() const { return static_cast<int64_t>(kl_.size()); }
  // Both need at least one window. At most `bins` bins of equal width, the last one possibly narrower.
  DivergenceSummary summary() const;
  std::vector<PositionBin> by_position(int64_t bins) const;

 private:
  int64_t per_window_;
  std::vector<float> kl_;
  double sum_ = 0.0, squared_delta_p_ = 0.0;
  // By window and then in total, as `quire perplexity` adds them, so that both give the same number.
  std::vector<double> window_nll_reference_, window_nll_model_;
  int64_t agreeing_ = 0;
};

}  // namespace quire
