// From a plan to a step and back: builds the arrays of steps, keeps the caches' books, and knows which steps are under
// way. Internal to the engine.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "cache/block_pool.h"
#include "cache/host_tier.h"
#include "cache/prefix_cache.h"
#include "engine/backend.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"
#include "engine/step_record.h"
#include "ops/sampling/rows.h"

namespace quire {

class Runner {
 public:
  // Sequences are those that run, found by their place.
  Runner(Backend& backend, const EngineOptions& options, const ModelConfig& model);

  // Gives a sequence a place, what the cache has of its prompt and, if the model has recurrent layers, a state slot: the
  // plan says that they exist, and is submitted next.
  void admit(std::unique_ptr<Sequence> s);
  // What the cache has of a waiting sequence's prompt, into its `match`.
  void find_prefix(Sequence& s);
  // Where the sequence's next chunk should end so that its state can be saved; 0: anywhere.
  int64_t next_cut(const Sequence& s) const;
  // The same of one that waits.
  int64_t first_cut(const Sequence& s) const;
  // Submits a plan's work. At most `depth` steps are under way. The record, of which the rest is filled in, comes back with
  // its results.
  StepRecord& submit(const StepPlan& plan, const StepRecord& record);
  bool idle() const { return flights_ == 0; }
  bool full() const { return flights_ == depth_; }

  // One row's result of a step that has been computed.
  struct Row {
    Sequence* sequence = nullptr;
    Sampled sampled;
  };
  struct Retired {
    std::vector<Row> rows;           // valid until the next retire()
    std::vector<Sequence*> prompts;  // whose prompts are computed, and nothing follows them; likewise
    StepRecord record;               // of the step, as far as the runner knows it
  };
  // Waits for the oldest step. Its sequences may then be finished. After an error nothing of theirs is kept for others, of
  // later steps neither.
  Result<const Retired*> retire();
  double waited_seconds() const { return waited_seconds_; }  // for the backend, in retire()
  // Nothing more of the sequence is planned. Its place and memory return when no step under way mentions it.
  void finish(Sequence& s);
  // Gives back what finished sequences held. Pointers to them end here.
  void release_finished();

  const std::vector<std::unique_ptr<Sequence>>& running() const { return running_; }  // in order of admission
  int32_t free_places() const { return static_cast<int32_t>(free_places_.size()); }
  const BlockPool& blocks() const { return blocks_; }
  const BlockPool& host_blocks() const { return host_blocks_; }
  // Null: prompts are always computed whole.
  const PrefixCache* prefix_cache() const { return cache_.get(); }
  PrefixCache* prefix_cache() { return cache_.get(); }
  const StatePool& slots() const { return slots_; }
  // From the host, that one step can make for those whose prefixes are there.
  int32_t most_moves() const { return host_tier_ ? host_tier_->ins_left() : 0; }
  // State slots that sequences may still take.
  int32_t free_slots() const { return recurrent_ ? free_places() : 0; }
  // How many of a sequence's last blocks on the device nobody else uses.
  int32_t sole_blocks(const Sequence& s) const;

  struct Counts {
    int64_t queries = 0, hits = 0;  // tokens of admitted prompts; of them, those that were found
    std::array<int64_t, kPrefixMisses> misses{};
    int64_t preemptions = 0, swapped_out = 0, swapped_in = 0;  // sequences; blocks
  };
  const Counts& counts() const { return counts_; }
  // Pools consistent, every block and slot accounted for.
  Status check() const;

 private:
  // A step under way.
  struct Flight {
    struct Mention {
      Mention(Sequence* s, int32_t row) : sequence(s), logit_row(row) {}
      Sequence* sequence;
      int32_t logit_row;                         // or -1
      int64_t prompt_end = 0;                    // after a chunk of prompt
      int32_t hidden_row = 0, hidden_count = 0;  // of an embedding: the step's hidden rows that are its own
      int32_t scored_row = 0, scored_count = 0;  // of its prompt: the step's scored rows that are its own
      StateSlot saved;                           // that the step copied the state after `saved_at` tokens to
      int64_t saved_at = 0;
    };
    int buffer = 0;
    std::vector<Mention> mentions;
    StepRecord record;
  };
  void add(const Work& w, bool decode, StepShape& shape, const StepLayout::Arrays& to, Flight& flight,
           SampleRowList& samples);
  void add_sample(Sequence& s, int32_t row, bool decode, StepShape& shape, const StepLayout::Arrays& to,
                  Flight& flight, SampleRowList& samples);
  void add_hidden(const Sequence& s, int32_t row, int32_t count, StepShape& shape,
                  const StepLayout::Arrays& to, Flight::Mention& mention) const;
  void pool(const Flight::Mention& m, const Tensor& hidden);
  void add_scores(const Sequence& s, int32_t row, const Work& w, StepShape& shape,
                  const StepLayout::Arrays& to, Flight::Mention& mention) const;
  void keep_scores(const Flight::Mention& m, const SampleOutputs& scored) const;
  void note(Sequence& s, int32_t row, const Work& w, StepShape& shape, const StepLayout::Arrays& to);
  void swap_out(Sequence& s, int32_t blocks, StepShape& shape, const StepLayout::Arrays& to);
  void swap_in(Sequence& s, StepShape& shape, const StepLayout::Arrays& to);
  void save_state(Sequence& s, Flight::Mention& mention);
  void load_prefixes();
  void write_copies(StepShape& shape, const StepLayout::Arrays& to) const;
  void write_moves(StepShape& shape, const StepLayout::Arrays& to) const;
  void note_books(const StepShape& shape, StepRecord& record) const;
  void make_room(int32_t blocks);
  int64_t cut_after(const Sequence& s, int64_t position) const;
  void publish(Flight::Mention& m, bool done);
  void give_back(Sequence& s);

  Backend& backend_;
  int depth_;
  bool recurrent_;
  Pooling pooling_;
  BlockPool blocks_;
  BlockPool host_blocks_;
  StatePool slots_;
  std::optional<HostTier> host_tier_;
  std::unique_ptr<PrefixCache> cache_;
  struct Loading {
    Sequence* sequence;
    bool state;  // is still to come as well
  };
  std::vector<Loading> loading_;  // admitted with prefixes that are on the host in part
  Counts counts_;
  std::vector<std::unique_ptr<Sequence>> running_;
  std::vector<Sequence*> at_place_;
  std::vector<int32_t> free_places_;
  std::vector<BlockCopy> copies_, slot_copies_;
  std::vector<SampleRowList> samples_;  // one for each buffer
  std::vector<NoteRangeList> notes_, past_notes_;
  Flight flight_[kMostDepth];
  int oldest_ = 0, flights_ = 0;
  NoteRangeList *noting_ = nullptr, *noting_past_ = nullptr;
  double waited_seconds_ = 0.0;
  Retired retired_;
};

}  // namespace quire
