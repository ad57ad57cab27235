// What an engine drafts for its next step: tokens that are verified beside a generated one. Internal to the engine.
#pragma once

#include <chrono>
#include <optional>
#include <random>
#include <vector>

#include "engine/draft_plan.h"
#include "engine/loaded_model.h"
#include "engine/plan.h"
#include "engine/running_set.h"
#include "engine/steps_in_flight.h"

namespace quire {

// Whether drafts are right, as chance has it.
class SimulatedAcceptance {
 public:
  explicit SimulatedAcceptance(std::vector<float> by_depth) : by_depth_(std::move(by_depth)) {}
  // The draft at this depth, those before it being right. Beyond the last depth that is told of: as that.
  bool accepts(int32_t depth) {
    const auto at = std::min(static_cast<size_t>(depth), by_depth_.size() - 1);
    return std::uniform_real_distribution<float>(0, 1)(random_) < by_depth_[at];
  }

 private:
  std::vector<float> by_depth_;
  std::mt19937_64 random_{1};
};

// The stepping thread owns it. Texts do not depend on what it decides.
class Speculator {
 public:
  // Both must outlive it.
  Speculator(const EnginePlan& plan, const LoadedModel& model);

  // A sequence is admitted: it begins with what drafts of others were worth.
  void begin(Sequence& s) const;
  // Whether the next step is to verify drafts, which the outcome of every step before it decides.
  bool wants_drafts(const RunningSet& running);
  // Decides what is drafted for each sequence in the step that is planned, if nothing of it is in flight.
  void offer(const RunningSet& running);
  // Whether the draft at this depth, those before it being right, counts as right: `equal`, unless chance decides.
  bool accepts(int32_t depth, bool equal) { return chance_ ? chance_->accepts(depth) : equal; }
  // Tokens of a sequence were committed: of so many drafts the first `accepted` were right. Lookup is shown the tokens.
  void committed(Sequence& s, int32_t drafts, int32_t accepted);
  // What a step took, that has been retired now, and that the engine has nothing to do.
  void retired(const StepInFlight& step);
  void idle() { last_step_.reset(); }

 private:
  using Clock = std::chrono::steady_clock;
  // How many drafts there are room for in the sequence's next step; `soon`: once what is in flight of it has ended.
  int32_t most_drafts(const Sequence& s, bool soon) const;
  // Whether the multi-token-prediction block can draft for it, likewise.
  bool has_mtp(const Sequence& s, bool soon) const;
  // What of its drafts promises most tokens.
  DraftOffer offer_of(Sequence& s, bool soon) const;
  void offer_to(Sequence& s) const;
  void look_up(Sequence& s) const;
  std::vector<TokenId> forced_tokens(const Sequence& s) const;

  const EnginePlan& plan_;
  const LoadedModel& model_;
  DraftPlan draft_plan_;
  AcceptanceAverages typical_mtp_{AcceptanceAverages::kOfAll}, typical_others_{AcceptanceAverages::kOfAll};
  std::vector<DraftOffer> offers_;              // of those who generate
  std::optional<Clock::time_point> last_step_;  // when it was retired; none: the engine has been idle since
  std::optional<SimulatedAcceptance> chance_;   // of SpeculativeOptions::simulated
};

}  // namespace quire
