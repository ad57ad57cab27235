// Who holds which part of the caches: units of each pool, pages of the host, and the prefix cache over them.
// Internal to the engine.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "cache/block_pool.h"
#include "cache/host_tier.h"
#include "cache/prefix_cache.h"
#include "engine/backend.h"
#include "engine/sequence.h"
#include "engine/step_record.h"
#include "engine/steps_in_flight.h"

namespace quire {

// What a step has to copy and move before it computes anything, in this order: the moves to the host, the moves from
// it, the copies of states (from, to).
struct StepMoves {
  std::vector<HostMove> outs, ins;
  std::vector<std::pair<int32_t, int32_t>> state_copies;
};

// One step after the other is built: admit, then begin_step, swap_out, swap_in, reserve and save_state as its plan
// says, then step_moves, which has all that these need to be moved and copied, then end_step. Not thread-safe: the
// engine thread owns it. Steps that admit nobody allocate nothing.
class CacheManager {
 public:
  CacheManager(const Backend& backend, const EnginePlan& plan, const ModelConfig& model);

  // Makes the tables of a sequence that may come to need so many blocks of kKvPool. Any thread.
  void prepare(SequenceMemory& memory, int32_t most_blocks) const;
  // Blocks of windows that are set aside for a sequence while it runs, so that these never run short.
  static WindowCounts set_aside(const Sequence& s);
  // Those that are set aside for none of these.
  WindowCounts free_windows(std::span<const ScheduledSequence> running) const;

  // What the prefix cache has of a waiting sequence's prompt, into its `match`.
  void find_prefix(Sequence& s);
  // Where the next chunk of a running sequence should end so that its state can be saved; 0: anywhere.
  int64_t next_cut(const Sequence& s) const;
  // The same of a waiting one's first chunk.
  int64_t first_cut(const Sequence& s) const;
  // Whether steps in flight or to come make more of a running sequence's prompt findable: only then is it worth waiting
  // for. Those that generate do not.
  bool is_adding_prefixes(const Sequence& s) const;
  // How many of a sequence's last blocks on the device nobody else uses.
  int32_t exclusive_blocks(const Sequence& s) const;

  // Gives a sequence a state slot if the model has recurrent layers, and what the prefix cache has of its prompt. The
  // plan says that they exist, and the step that it plans is built next.
  void admit(Sequence& s);
  // Brings back from the host what the admitted sequences found there.
  void begin_step();
  // The sequence's last blocks go to the host. Its batch slot, its state, its history and its last token stay where
  // they are: there are as many of each as there are batch slots, and only blocks are scarce.
  void swap_out(Sequence& s, int32_t blocks);
  // All of its blocks come back.
  void swap_in(Sequence& s);
  // Gives the sequence blocks for positions [begin, end).
  void reserve(Sequence& s, int64_t begin, int64_t end);
  // Whether the state after `end` tokens of the prompt is one to be saved.
  bool is_checkpoint(const Sequence& s, int64_t end) const;
  // A copy of the state in the sequence's state slot, if the cache has none like it and a slot to spare: the step
  // begins with that copy, before it changes the state.
  void save_state(Sequence& s, SequenceRows& rows);
  // All that the step has to move and copy, which the record is told of. Until end_step().
  const StepMoves& step_moves(StepRecord& record);
  void end_step();

  // Makes what a retired step computed of a prompt findable; `succeeded`: the bits are what they should be.
  void publish(const SequenceRows& rows, bool succeeded);
  // Takes back the blocks of windows that no step reads any more, once those with these rows and before have ended.
  void release_windows(const SequenceRows& rows);
  // Takes back all that the sequence holds.
  void release(Sequence& s);

  const CachePools& pools() const { return pools_; }
  PoolUses uses() const;
  bool recurrent() const { return recurrent_; }
  bool has_windows() const { return blocks_.size() > 1; }
  const BlockPool& blocks() const { return blocks_[kKvPool]; }
  const BlockPool& host_blocks() const { return host_blocks_; }
  const PrefixCache* prefix_cache() const { return prefix_.get(); }  // null: prompts are always computed whole
  PrefixCache* prefix_cache() { return prefix_.get(); }
  // Moves from the host that one step can make for those whose prefixes are there.
  int32_t most_moves() const { return host_tier_ ? host_tier_->ins_left() : 0; }

  struct Counts {
    int64_t queries = 0, hits = 0;  // tokens of admitted prompts; of them, those that were found
    std::array<int64_t, kPrefixMisses> misses{};
    int64_t preemptions = 0, swapped_out = 0, swapped_in = 0;  // sequences; blocks
  };
  const Counts& counts() const { return counts_; }
  // Of the prefix cache's memory on the host: as StepStats has it. Zeros where there is none.
  struct HostUse {
    int64_t pages_used = 0, pages_total = 0, states = 0;
    int64_t bytes_stored = 0, bytes_loaded = 0, tokens_loaded = 0;
  };
  HostUse host_use() const;

  // Pools consistent, and every block, state and page accounted for by these sequences and the prefix cache.
  Status check(std::span<const std::unique_ptr<Sequence>> running) const;

 private:
  struct Loading {
    Sequence* sequence;
    bool state;  // comes from the host as well
  };
  int64_t cut_after(const Sequence& s, int64_t position) const;
  Status check_blocks(int pool, std::span<const std::unique_ptr<Sequence>> running) const;
  void make_room(int32_t blocks);
  void make_prefix_cache(const HostPages& pages, const EnginePlan& plan, const ModelConfig& model);

  const CachePools pools_;
  std::vector<WindowNeeds> needs_;  // of each of them
  bool recurrent_;
  // Of sequences and of the prefix cache: each pool of blocks. Every running sequence has all that it can come to hold
  // of windows set aside for it; what it does not use just now the prefix cache has.
  std::vector<BlockPool> blocks_;
  BlockPool host_blocks_;
  StatePool states_;
  std::optional<HostTier> host_tier_;
  std::unique_ptr<PrefixCache> prefix_;
  std::vector<Loading> loading_;  // admitted, with prefixes that lie on the host in part
  StepMoves moves_;
  Counts counts_;
};

}  // namespace quire
