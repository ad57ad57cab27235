// Masks of sequences that are held to a form: who waits for one that takes long, and how those of a step are written.
// Internal to the engine.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/backend.h"
#include "engine/mask_pool.h"
#include "engine/running_set.h"
#include "engine/steps_in_flight.h"

namespace quire {

// The stepping thread owns it.
class SequenceMasks {
 public:
  // `on_made` is called on another thread when a mask that takes long is there. The backend must outlive it.
  SequenceMasks(Backend& backend, std::function<void()> on_made) : backend_(backend), pool_(std::move(on_made)) {}

  // Has the pool compute the next mask of those whose mask takes long, before a step is planned.
  void start_slow(const RunningSet& running);
  // Has the pool commit a token, which nobody hears of until then, and compute the mask behind it.
  void commit_slowly(Sequence& s, TokenEvent::Token token);
  // Whether the sequence's next token cannot be sampled yet: the pool computes its mask.
  static bool waits(const Sequence& s);
  // The token that was held, of which the pool now says whether the form has it; none: it goes on, or there was none.
  struct Committed {
    TokenEvent::Token token;
    bool accepted = false;
  };
  static std::optional<Committed> take(Sequence& s);
  // Writes those of a submitted step, while the backend computes what comes before the sampling.
  void write(StepInFlight& step);

 private:
  void start(Sequence& s, TokenId token);
  static void use(Sequence& s, std::span<uint32_t> to, StepRecord& record);
  std::vector<TokenId> drafts_of(const StepInFlight& step, const SequenceRows& rows) const;

  Backend& backend_;
  MaskPool pool_;
};

}  // namespace quire
