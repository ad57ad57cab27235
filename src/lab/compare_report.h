// What `quire compare` found, as a table and as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "eval/divergence.h"
#include "tokenizer/tokenizer.h"

namespace quire::cli {

// A position at which the models disagree.
struct Disagreement {
  int64_t window = 0, position = 0;  // the prediction made after this position of the window
  TokenId token = -1;                // the one that follows in the text
  Divergence divergence;
  std::vector<TokenProbability> reference, model;  // the likeliest tokens of each
  bool before_is_cut = false;
  std::string before;  // the end of the window so far
};

// The positions with the largest KL, largest first, the earlier one first among equals.
class LargestDisagreements {
 public:
  explicit LargestDisagreements(int64_t limit) : limit_(static_cast<size_t>(limit)) {}

  // Whether a position with this KL, later than all before, would be among them. One with KL 0 never is.
  bool wants(double kl) const;
  void add(Disagreement d);
  const std::vector<Disagreement>& list() const { return list_; }

 private:
  size_t limit_;
  std::vector<Disagreement> list_;
};

struct Comparison {
  std::string reference, model, text;  // names
  int64_t window = 0, windows = 0;
  DivergenceSummary summary;
  std::vector<PositionBin> by_position;
  std::vector<Disagreement> disagreements;
};

std::string comparison_table(const Comparison& c, const Tokenizer& tokenizer);
// Infinite values are null.
nlohmann::ordered_json comparison_json(const Comparison& c, const Tokenizer& tokenizer);

}  // namespace quire::cli
