// How many drafts a step verifies: as many as make tokens come fastest. The texts do not depend on it.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "ops/segments.h"

namespace quire {

// How often drafts of one sequence were right, by depth: each share is that of drafts whose predecessors were right.
class AcceptanceAverages {
 public:
  static constexpr float kPrior = 0.7f;  // before anything is known
  // Of one sequence soon, of all sequences of an engine slowly: these are what the next ones begin with.
  static constexpr float kOfOne = 0.08f, kOfAll = 0.01f;

  explicit AcceptanceAverages(float weight = kOfOne) : weight_(weight) {}
  // Those of one sequence that begins with these.
  AcceptanceAverages for_one() const {
    AcceptanceAverages one = *this;
    one.weight_ = kOfOne;
    return one;
  }
  float at(int32_t depth) const { return share_[static_cast<size_t>(depth)]; }
  // Tokens that a step makes of one sequence with so many drafts: its own, and each draft that is right.
  double expected_tokens(int32_t drafts) const;
  // Of so many drafts the first `accepted` were right.
  void observe(int32_t drafts, int32_t accepted);

 private:
  float weight_;  // of a new observation
  std::array<float, kMostDrafts> share_ = {kPrior, kPrior, kPrior, kPrior, kPrior, kPrior, kPrior};
};

// Drafts of each sequence on average, rounded; at least one where there is any.
int32_t drafts_of_each(int64_t drafts, int64_t sequences);

// How long steps of generated tokens take, by the number of sequences (rounded to powers of two) and of drafts of each
// (on average, rounded). Learned while running; what was not seen is assumed from what was.
class StepCosts {
 public:
  // A step of nothing but generated tokens took so long, from its planning to its results as far as nothing else was
  // under way. The first ones of a kind are not counted: memory is touched and graphs are captured in them.
  void observe(int32_t sequences, int32_t drafts, double seconds);
  // 0: nothing is known of so many sequences.
  double seconds(int32_t sequences, int32_t drafts) const;
  bool seen(int32_t sequences, int32_t drafts) const;

 private:
  static constexpr int kSizes = 13, kUncounted = 2;
  // A row more, with the draft that it takes, is assumed to cost so large a share of a step without any.
  static constexpr double kOfDraft = 0.12;
  struct Kind {
    int32_t seen = 0;
    double seconds = 0;
  };
  static size_t size_of(int32_t sequences);
  std::array<std::array<Kind, kMostDrafts + 1>, kSizes> kinds_{};
};

// What one sequence could have drafted in the next step.
struct DraftOffer {
  int32_t most = 0;  // drafts
  const AcceptanceAverages* acceptance = nullptr;
};

// Chooses one number of drafts for all sequences of a step: each gets as many as it has on offer, and no more than
// that. Now and then it tries one more or one less than what looks best, so that costs and acceptances stay known. Not
// thread-safe.
class DraftPlan {
 public:
  // `rows`: drafts of all sequences together, at most. Steps that are planned in turn have each its own call.
  int32_t choose(std::span<const DraftOffer> offers, int64_t rows);
  // The same without taking a turn: whether the next call would choose any.
  bool wants_drafts(std::span<const DraftOffer> offers, int64_t rows) const;
  void observe(int32_t sequences, int32_t drafts, double seconds) { costs_.observe(sequences, drafts, seconds); }

 private:
  static constexpr int32_t kTryEvery = 96;
  int32_t best(std::span<const DraftOffer> offers, int64_t rows, int32_t turn) const;
  StepCosts costs_;
  int32_t turn_ = 0;
};

}  // namespace quire
