// Lays out one step after the other in the backend's staging memory. Internal to the engine.
#pragma once

#include <vector>

#include "engine/cache_manager.h"
#include "engine/encoder.h"
#include "engine/scheduler.h"
#include "engine/steps_in_flight.h"
#include "ops/sampling/rows.h"

namespace quire {

// For each step: begin(), add() for the rows of every sequence, decodes first, and end(). It reads sequences and
// changes of them only what says how far their history on the device has come. Allocates when it is made and not again.
// Not thread-safe.
class StepWriter {
 public:
  StepWriter(Backend& backend, const EnginePlan& plan, const ModelConfig& model);

  // The step will lie in this buffer of the backend's, which no step in flight uses.
  void begin(int buffer, const StepPlan& plan);
  // Adds the rows of a sequence, which has the blocks for them. `rows` is told which results of the step are its own.
  // Returns its segment.
  Segment add(Sequence& s, const Work& work, bool decode, SequenceRows& rows);
  // The rows of a segment of a prompt that are a picture's, which are there.
  void add_pictures(const Sequence& s, const Segment& segment, Encoder& encoder);
  // The whole step's shape, with what is moved and copied before it.
  StepShape end(const StepMoves& moves);

 private:
  // What is written with checks, in each buffer.
  struct Lists {
    SampleRowList samples;
    HistoryUpdateList history_updates, past_updates;
  };
  int32_t even_rows(const StepPlan& plan) const;
  void pad_rows(int32_t count);
  void add_tokens(const Sequence& s, const Work& work);
  void add_coordinates(const Sequence& s, int64_t position, int32_t* to) const;
  // What the multi-token-prediction block does before the step for a generated token, and behind it for any rows.
  void add_drafts(const Sequence& s, const Work& work);
  void add_follow(Sequence& s, const Work& work, bool decode, const SequenceRows& rows);
  void add_history(Sequence& s, const Work& work);
  void add_unnoted(Sequence& s, int32_t drafts, SampleTarget& target);
  void add_sample(Sequence& s, const Work& work, bool decode, SequenceRows& rows);
  void add_hidden(const Sequence& s, const Work& work, SequenceRows& rows);
  void add_scores(const Sequence& s, const Work& work, SequenceRows& rows);

  Backend& backend_;
  Pooling pooling_;
  std::vector<Lists> lists_;  // one for each buffer
  // Of the step that is written.
  Lists* list_ = nullptr;
  StepArrays to_;
  StepShape shape_;
  int32_t each_ = 1;  // rows of a sequence with generated tokens at least: padding behind those with fewer
};

}  // namespace quire
