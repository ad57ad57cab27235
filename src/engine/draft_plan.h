// How many drafts each sequence of a step gets: as many as make the most of tokens per second over all sequences. A
// pure choice from three things that are measured elsewhere: what steps cost (StepCosts), how often drafts are accepted
// (AcceptanceAverages), and which drafts there are. It decides how fast texts come, never what they say.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "core/result.h"

namespace quire {

// Where drafts come from.
enum class DraftSource : uint8_t { kMtp, kLookup };
inline constexpr int kDraftSources = 2;
inline constexpr int kMostDrafts = 7;  // of a sequence in a step: a decode segment has up to 8 rows

// What a step takes, measured at points and interpolated between them; a table of its own for each model and machine.
// Axes: sequences that decode, rows of each (1 and its drafts; the mean of all in a mixed step), and tokens that each
// has kept (the mean). Beyond the last point of an axis the last piece goes on; before the first its value stays.
class StepCosts {
 public:
  struct Points {
    std::vector<double> sequences, rows, keys;  // ascending, at least one each
    std::vector<double> seconds;                // [sequences][rows][keys], each positive
    // Of one more MTP draft for all sequences of a step: the block and its head.
    double mtp_draft_seconds = 0;
  };
  // kBug if sizes disagree, an axis does not ascend, or a time is not positive and finite.
  static Result<StepCosts> make(Points points);

  // Seconds of a step of `sequences` with so many rows in all, of drafts apart from MTP's.
  double seconds(double sequences, double rows, double keys) const;
  double mtp_draft_seconds() const { return points_.mtp_draft_seconds; }
  // A step took so long (without MTP's drafts): moves the points around it a little, each by its weight, so that
  // they follow a machine that has become slower or faster. A time that is not positive and finite is ignored; one that
  // is far off counts as 4 times, or a quarter of, what was expected.
  void observe(double sequences, double rows, double keys, double seconds);

 private:
  struct Place {  // on an axis: between points `at` and `at` + 1, a share of the way
    size_t at = 0;
    double share = 0;
  };
  explicit StepCosts(Points points) : points_(std::move(points)) {}
  static Place place(const std::vector<double>& axis, double x);
  template <class Fn>
  void around(double sequences, double rows, double keys, Fn fn) const;

  Points points_;
};

// How likely a draft at depth 1 to kMostDrafts is accepted if those before it are, for each source: moving averages of
// one request, beginning with the model's.
class AcceptanceAverages {
 public:
  using Rates = std::array<std::array<float, kMostDrafts>, kDraftSources>;  // in [0, 1]
  explicit AcceptanceAverages(const Rates& priors) : priors_(priors), rates_(priors) {}

  // Of `drafted` drafts the first `accepted` held. What lies beyond the first that did not says nothing. Depths that
  // were not drafted drift towards what is usual beside the depth before them, in the proportion of the priors: else a
  // depth that once seemed not to pay would never be tried again.
  void observe(DraftSource source, int drafted, int accepted);
  float rate(DraftSource source, int depth) const {
    return rates_[static_cast<size_t>(source)][static_cast<size_t>(depth - 1)];
  }
  const Rates& rates() const { return rates_; }

 private:
  static constexpr float kPriorWeight = 8, kWindow = 64;  // observations that the prior counts as; that are remembered
  static constexpr float kDrift = 1.0f / 512;
  Rates priors_, rates_;
  std::array<std::array<uint8_t, kMostDrafts>, kDraftSources> observed_{};  // up to kWindow
};

// A sequence of the step, and the drafts on offer for it by source: 0 to kMostDrafts.
struct DraftOffer {
  const AcceptanceAverages* averages = nullptr;
  std::array<int8_t, kDraftSources> count{};
};
// Of one sequence: the first `count` drafts of a source.
struct DraftChoice {
  DraftSource source = DraftSource::kMtp;
  int8_t count = 0;
};
struct DraftPlan {
  int64_t rows = 0;    // of all sequences, drafts included
  double tokens = 0;   // expected of the step
  double seconds = 0;  // expected
};

// Chooses for each of the sequences (of `keys` tokens in the mean) and writes choices[i] for offers[i]. Rows, drafts
// included, stay within row_budget unless the sequences alone exceed it: then there are no drafts. Each sequence drafts
// from the source that promises more tokens, lookup where both promise the same, since it costs nothing. Drafts are
// then taken in the order of how likely they are to be reached and accepted, and as many as give the most tokens per
// second. A draft that the model's averages never see accepted is tried again by probe_due, not here. Work: a constant
// for each sequence and depth.
DraftPlan plan_drafts(const StepCosts& costs, std::span<const DraftOffer> offers, double keys, int64_t row_budget,
                      std::span<DraftChoice> choices);

// Averages of drafts that are not made do not change: where no draft pays, one sequence gets a single draft once in a
// while all the same, so often that this costs at most kProbeShare of the time. Returns whether it is due: `plain` and
// `probe` are the expected seconds of the step without and with it, `steps` how many went by since the last.
inline constexpr double kProbeShare = 0.005;
bool probe_due(double plain, double probe, int64_t steps);

}  // namespace quire
