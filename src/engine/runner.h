// From a plan to a step and back: builds the arrays of steps, keeps the caches' books, and knows which steps are under
// way. Internal to the engine.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "cache/block_pool.h"
#include "engine/backend.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"
#include "ops/sampling/rows.h"

namespace quire {

class Runner {
 public:
  // Sequences are those that run, found by their place.
  Runner(Backend& backend, const EngineOptions& options, const ModelConfig& model);

  // Gives a sequence a place and, if the model has recurrent layers, a state slot: the plan says that they exist.
  void admit(std::unique_ptr<Sequence> s);
  // Submits a plan's work. At most `depth` steps are under way.
  void submit(const StepPlan& plan);
  bool idle() const { return flights_ == 0; }
  bool full() const { return flights_ == depth_; }

  // One row's result of a step that has been computed.
  struct Row {
    Sequence* sequence = nullptr;
    Sampled sampled;
  };
  struct Retired {
    std::vector<Row> rows;  // valid until the next retire()
    int64_t prompt_rows = 0, decode_rows = 0;
    double seconds = 0.0;
  };
  // Waits for the oldest step. Its sequences may then be finished; an error says that the device is lost.
  Result<const Retired*> retire();
  double waited_seconds() const { return waited_seconds_; }  // for the backend, in retire()
  // Nothing more of the sequence is planned. Its place and memory return when no step under way mentions it.
  void finish(Sequence& s);
  // Gives back what finished sequences held. Pointers to them end here.
  void release_finished();

  const std::vector<std::unique_ptr<Sequence>>& running() const { return running_; }  // in order of admission
  int32_t free_places() const { return static_cast<int32_t>(free_places_.size()); }
  const BlockPool& blocks() const { return blocks_; }
  const StatePool& slots() const { return slots_; }
  // Pools consistent, every block and slot accounted for.
  Status check() const;

 private:
  // A step under way.
  struct Flight {
    struct Mention {
      Sequence* sequence;
      int32_t logit_row;  // or -1
    };
    int buffer = 0;
    std::vector<Mention> mentions;
    int64_t prompt_rows = 0, decode_rows = 0;
  };
  void add(const Work& w, bool decode, StepShape& shape, const StepLayout::Arrays& to, Flight& flight,
           SampleRowList& samples);
  void add_sample(Sequence& s, int32_t row, bool decode, StepShape& shape, const StepLayout::Arrays& to,
                  Flight& flight, SampleRowList& samples);
  void note(Sequence& s, int32_t row, const Work& w);
  void give_back(Sequence& s);

  Backend& backend_;
  int depth_;
  bool recurrent_;
  BlockPool blocks_;
  StatePool slots_;
  std::vector<std::unique_ptr<Sequence>> running_;
  std::vector<Sequence*> at_place_;
  std::vector<int32_t> free_places_;
  std::vector<BlockCopy> copies_;
  std::vector<SampleRowList> samples_;  // one for each buffer
  std::vector<NoteRangeList> notes_;
  Flight flight_[kMostDepth];
  int oldest_ = 0, flights_ = 0;
  NoteRangeList* noting_ = nullptr;
  double waited_seconds_ = 0.0;
  Retired retired_;
};

}  // namespace quire
