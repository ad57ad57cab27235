// Decides what the next step computes. A pure function of a snapshot: no clock, no device, no threads, no
// memory of its own, so that it is tested with literals and by simulation.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "cache/shape.h"
#include "core/id.h"

namespace quire {

class PromptImages;

struct SchedulerLimits {
  int32_t max_batch_tokens = 0;  // rows of a step; at least 64 and least_chunk, so that a prompt always advances,
                                 // and max_sequences, so that every sequence that decodes does so in every step
  int32_t least_chunk = 0;       // tokens of the largest picture that one step has to compute whole
  int32_t max_sequences = 0;     // running at once, those that are swapped out included
  int32_t max_swaps = 0;         // blocks that one step moves to the host, and back
  int32_t max_sampled_rows = 0;  // rows of a step that are sampled: beyond one of each sequence they are drafts
  // Parts of keys (ops/attention/parts.h) that the sequences with a generated token in a step have together, times the
  // rows of the one that has the most; at least those of two sequences of the longest context. 0: any number
  int64_t max_parts = 0;
  // Devices that have the model's layers one behind the other: so many steps are computed at the same time.
  int32_t stages = 1;
  int64_t patience = INT64_MAX;  // steps after which a waiting request is passed no more by those that hit the cache
  int32_t first_token_threshold =
      0;                     // so many prompts that wait for a first token go before generated tokens; 0: none do
  int32_t most_skipped = 0;  // steps in a row that may leave out a sequence's next token for them
};

// Of each pool of blocks of windows, in their order; 0 of those that there are none of.
using WindowCounts = std::array<int32_t, kMostPools - 1>;

// What the scheduler knows of a sequence.
struct ScheduledSequence {
  SeqId id;
  int64_t prompt = 0;      // tokens of the prompt
  int64_t total = 0;       // prompt + generated so far
  int64_t computed = 0;    // positions that are in the caches; of a waiting one: that it would find there
  int32_t max_blocks = 0;  // KV blocks it may come to need: prompt + max_tokens
  WindowCounts windows{};  // blocks that are set aside for it while it runs
  int32_t held = 0;        // KV blocks for what is computed, wherever they are
  int32_t swapped = 0;     // of them, the last ones, which the host has: until they are back nothing of it is computed
  int32_t exclusive = 0;   // of those that the host has not, the last ones that nobody else uses
  int64_t cut = 0;         // a chunk of the prompt ends here at the latest (its state is saved); 0: anywhere
  // The prompt can be computed up to here, a place where a chunk may end: behind that a picture is not encoded.
  int64_t ready = INT64_MAX;
  const PromptImages* whole = nullptr;  // pictures that no chunk ends within; may be null
  bool finished = false;                // holds its memory until the last step that mentions it has ended
  int32_t skipped_steps = 0;            // steps in a row that left out its next token, for prompts or for others' parts
  int32_t drafts = 0;                   // with a generated token to compute: drafts that are wanted behind it
  bool waits_for_mask = false;          // with a generated token to compute: what may follow it is not known yet
  int64_t idle_steps = INT64_MAX;       // planned since the newest one that has rows of it: 0 is right after that
  bool in_flight = false;               // that step may be under way

  // Of a waiting one.
  int32_t unused = 0;     // of `held`, those that no running sequence uses: taking them leaves fewer to others
  int32_t priority = 0;   // lower ones first
  int64_t age = 0;        // steps that it has waited
  int32_t client = 0;     // whose it is: index into SchedulerState::clients
  int64_t arrival = 0;    // later ones have greater numbers, which ScheduledClient::since can be compared with
  bool deferred = false;  // somebody is computing what it needs: it waits for the result
};

// One of those whose requests wait.
struct ScheduledClient {
  int32_t running = 0;       // of its requests
  int64_t since = 0;         // when one of them was admitted last, in the order of arrivals and admissions; 0: none was
  int64_t idle = INT64_MAX;  // steps since then
};

struct SchedulerState {
  std::vector<ScheduledSequence> running;  // in order of admission
  // No more than may be looked at; a client's own by priority, then in order of arrival.
  std::vector<ScheduledSequence> waiting;
  std::vector<ScheduledClient> clients;  // empty: all that wait are one client's
  int32_t total_blocks = 0;
  int32_t available_blocks = 0;  // neither used by a sequence nor beyond reach
  int32_t host_blocks = 0, free_host_blocks = 0;
  WindowCounts free_windows{};  // blocks that are set aside for nobody
  int32_t free_slots = 0;       // recurrent state slots
  bool needs_slots = false;     // whether the model has recurrent layers
};

// Tokens [begin, begin + count) of a sequence. A decode begins at a generated token, begin >= prompt, and the others
// are drafts of those that follow it.
struct Work {
  SeqId seq;
  int64_t begin = 0;
  int32_t count = 0;
  bool operator==(const Work&) const = default;
};

// The last `blocks` of the blocks that a sequence has on the device go to the host.
struct Preemption {
  SeqId seq;
  int32_t blocks = 0;
  bool operator==(const Preemption&) const = default;
};

// Why a step admits no more of those that wait.
enum class AdmissionStop {
  kNone,     // nobody waits but those that are deferred
  kRunning,  // somebody who runs already is swapped out, pauses, or found no rows
  kPlaces,   // as many run as may
  kBlocks,   // their prompts, or their windows, do not fit
  kBudget,   // no rows are left
};

struct StepPlan {
  std::vector<SeqId> admit;         // move from waiting to running, in this order, before the work
  std::vector<Preemption> preempt;  // before everything else
  std::vector<SeqId> resume;        // all of their blocks come back, after that and before the work
  std::vector<Work> work;           // decodes first
  size_t decodes = 0;               // how many of them
  std::vector<SeqId> skipped;       // whose next token has to wait: for prompts, or for room among the parts
  bool first_tokens = false;        // prompts went first
  AdmissionStop stop = AdmissionStop::kNone;

  bool empty() const { return work.empty() && preempt.empty() && resume.empty(); }
  void reserve(size_t sequences);
  void clear();

 private:
  friend class Planner;
  struct Holding {
    int32_t held = 0, swapped = 0, exclusive = 0;
    int32_t rows = 0;
    bool left_out = false;  // its next token is another step's: it finds no room among the parts, or goes with others
  };
  // A client as it becomes, and the best of its requests that may be admitted; -1: there is none.
  struct Turn {
    ScheduledClient client;
    int32_t best = -1;
  };
  std::vector<Holding> holdings_;  // scratch: of the running ones, as they become
  std::vector<Turn> turns_;
  std::vector<char> gone_;        // of the waiting ones: whether they are admitted, or wait for another one's result
  std::vector<Work> admitted_;    // of those that are admitted
  std::vector<int32_t> by_turn_;  // of the running ones, those with a generated token to compute
};

// Policy:
// 1. Running sequences advance in order of admission: a generated token each, and prompts in chunks that end on
//    64-token boundaries (or at the prompt's end, or before or behind a picture that is computed whole, if the boundary
//    lies within it) while the token budget lasts; decodes count first.
// 2. Blocks are taken as tokens are written. When none is left, those of the youngest sequence go to the host, last
//    ones first and no more than needed; while a block of it is there it does not run. If the host is full as well,
//    younger sequences pause.
// 3. A younger sequence gets a block only if all older ones, one after the other, could still run to their end with
//    what the younger ones then have on device and host together. So the oldest never pauses, and everybody ends.
// 4. Sequences that were swapped out resume, the oldest first, once their blocks fit beside one more for each runner.
// 5. Only when nobody is swapped out, pauses or was held back are waiting requests admitted, while there is a place, a
//    state slot, all window blocks that it can come to hold, so that these never run short, and room *now* for
//    the whole prompt beside the rest of the running ones' prompts. One that is deferred lets others pass. Clients take
//    turns: first those with a request of the best priority, of them those with the fewest requests running, then those
//    that the cache helps, then those that have waited longest since one of theirs was admitted. Of a client's own
//    requests: by priority, those that the cache helps before the others, then in order of arrival. But whoever has
//    waited longer than `patience` is passed no more by those that the cache helps.
// 6. When as many prompts as `first_token_threshold` wait for their first token, running or not, prompts have the token
//    budget before decodes, which share what is left in order of admission. But the oldest sequence, and one that
//    was skipped by `most_skipped` steps in a row, has its row first, so that 3. holds; and this is done only while
//    nobody is swapped out and blocks suffice for whatever the step computes, so that nothing of 2. to 4. changes.
// 7. Drafts get what is left over: rows that no generated token and no next chunk of a prompt needs, and blocks while
//    there are enough for everybody's next one. They are never a reason to swap out, to pause or to wait.
// 8. A sequence that waits for a mask has no row until it is there, and holds up nobody else.
// 9. Where the keys of all generated tokens have more parts than `max_parts`, the oldest sequence comes first, then
//    those that were left out for most steps in a row: so each has its row within as many steps as there are sequences.
//    Drafts are as many as the parts of those that have a row leave room for.
// 10. A prompt is computed up to where its pictures are there. One that waits for the next one has no row until then,
//     and holds up nobody else; a request that would have to wait is deferred.
// 11. With several stages, sequences with a generated token to compute form as many groups, or one of each if they are
//     fewer: a step has those whose last step is longest ago, no more than a group's share of all, and none whose token
//     is being computed by one of the other groups' steps. So every stage has a step of its own to compute, and all
//     have their turn. Prompts go on in every step. Where those whose turn it is find no room, others go on.
StepPlan plan_step(const SchedulerState& now, const SchedulerLimits& limits);
// The same into a plan that is used again, whose memory is kept.
void plan_step(const SchedulerState& now, const SchedulerLimits& limits, StepPlan& plan);

}  // namespace quire
