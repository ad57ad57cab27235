// The steps that are submitted and not yet retired. Internal to the engine.
#pragma once

#include <algorithm>
#include <vector>

#include "engine/backend.h"
#include "engine/sequence.h"
#include "engine/step_record.h"

namespace quire {

// What one sequence has in a step: which of the step's results are its own.
struct SequenceRows {
  Sequence* sequence = nullptr;
  int64_t prompt_end = 0;                    // after a chunk of prompt: how many of its tokens are computed
  int64_t settled = 0;                       // later steps have no row of it before this position
  int32_t logit_row = -1;                    // whose token is sampled; -1: none
  int32_t drafts = 0;                        // whose rows are those behind it
  int32_t usable = 0;                        // drafts that may be right: the first ones
  int32_t mask = -1;                         // of the first row; those of its drafts are behind it. -1: none
  int32_t hidden_row = 0, hidden_count = 0;  // of an embedding
  int32_t scored_row = 0, scored_count = 0;  // of a prompt whose log-probabilities are wanted
  StateSlot saved;                           // that the step copies the state after `saved_at` tokens to
  int64_t saved_at = 0;
};

struct StepInFlight {
  int buffer = 0;  // of the backend
  std::vector<SequenceRows> rows;
  StepRecord record;
  bool speculates = false;  // it verifies drafts: what it leads to is known when it has ended
  // kWait: they depend on tokens that the step before it samples. No step is submitted behind it until they are
  // written.
  enum class Masks { kNone, kWait, kWritten } masks = Masks::kNone;
};

// A ring of `depth` steps in as many of the backend's buffers or more: the oldest one is retired first. What it was
// stays readable until as many steps as there are buffers were begun after it. Allocates when it is made and not again.
class StepsInFlight {
 public:
  StepsInFlight(int depth, int buffers, int32_t segments) : depth_(depth), buffers_(buffers) {
    for (int i = 0; i < buffers; ++i) steps_[i].buffer = i, steps_[i].rows.reserve(static_cast<size_t>(segments));
  }
  bool empty() const { return count_ == 0; }
  bool full() const { return count_ == depth_; }

  // The newest step, to be filled in. The ring is not full.
  StepInFlight& begin() {
    QUIRE_CHECK(!full(), "{} steps are in flight already", count_);
    StepInFlight& step = steps_[(oldest_ + count_++) % buffers_];
    step.rows.clear();
    step.speculates = false;
    step.masks = StepInFlight::Masks::kNone;
    return step;
  }
  // The newest step, while one is in flight.
  StepInFlight& newest() { return steps_[(oldest_ + count_ - 1) % buffers_]; }
  // The oldest step, which is in flight no more. The ring is not empty.
  StepInFlight& retire() {
    QUIRE_CHECK(!empty(), "no step is in flight");
    --count_;
    StepInFlight& step = steps_[oldest_];
    oldest_ = (oldest_ + 1) % buffers_;
    return step;
  }

 private:
  int depth_, buffers_, oldest_ = 0, count_ = 0;
  StepInFlight steps_[kMostDepth];
};

}  // namespace quire
