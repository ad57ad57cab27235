// How well a model predicts a text.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "command/windows.h"
#include "eval/scorer.h"

namespace quire::cli {

struct TextScore {
  int64_t window = 0, windows = 0;
  double nll = 0;                  // sum of -log p of all tokens but each window's first, natural logarithm
  std::vector<double> window_nll;  // of each window

  int64_t scored() const { return windows * (window - 1); }
  double mean() const { return nll / static_cast<double>(scored()); }
  double perplexity() const;
};

// Consecutive windows that do not overlap, as many as `cut` says; each from an empty state, tokens 1 ... n-1 scored
// given the earlier ones of the same window. The names are for the error that a damaged model is.
Result<TextScore> score_text(Scorer& scorer, std::span<const TokenId> tokens, const WindowOptions& cut,
                             const std::string& model, const std::string& text);

}  // namespace quire::cli
