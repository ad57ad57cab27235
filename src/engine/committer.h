// What a step has computed becomes part of the sequences that it was computed for, and their listeners are told.
// Internal to the engine.
#pragma once

#include "engine/backend.h"
#include "engine/delivery.h"
#include "engine/engine_counters.h"
#include "engine/loaded_model.h"
#include "engine/sequence_masks.h"
#include "engine/speculator.h"
#include "engine/steps_in_flight.h"
#include "engine/waiting_requests.h"

namespace quire {

// The stepping thread owns it. It decides when a sequence ends; what the sequence holds is for others to take back.
class Committer {
 public:
  // All of these must outlive it. `waiting` hears when a request of a client runs no more.
  Committer(const LoadedModel& model, Delivery& delivery, Speculator& speculator, SequenceMasks& masks,
            EngineCounters& counters, WaitingRequests& waiting)
      : model_(model),
        delivery_(delivery),
        speculator_(speculator),
        masks_(masks),
        counters_(counters),
        waiting_(waiting) {}

  // What a retired step computed for one sequence. Returns how many of its drafts were right.
  int32_t commit(const SequenceRows& rows, const StepResults& results);
  // The token that waited for the pool of masks, if that has said by now whether the sequence's form allows it.
  void commit_held(Sequence& s);
  // Ends a running sequence and tells so.
  void finish(Sequence& s, TokenEvent::Ended ended);
  // Ends one, finished or not, whose listener has heard of the end.
  void end(Sequence& s);

 private:
  // Tokens that the rows of a sequence made: one, and another for each draft that was right. Returns how many were.
  int32_t commit_tokens(const SequenceRows& rows, const StepResults& results);
  // `alone`: no further token of the same step follows.
  void commit_token(Sequence& s, Sampled sampled, bool alone);
  // The end of a prompt that nothing follows: an embedding, or log-probabilities of the prompt alone.
  void commit_prompt(Sequence& s);
  // Before the first token, or where none follows: what is told of the prompt.
  void tell_begun(Sequence& s);
  // Of a token that the sequence's constraint has accepted.
  void tell(Sequence& s, TokenEvent::Token token);
  // How a token that its sequence may go on from ends it, if it does.
  FinishReason reason_to_end(const Sequence& s, TokenId token) const;

  const LoadedModel& model_;
  Delivery& delivery_;
  Speculator& speculator_;
  SequenceMasks& masks_;
  EngineCounters& counters_;
  WaitingRequests& waiting_;
};

}  // namespace quire
