// Decides what the next step computes. A pure function of a snapshot: no clock, no device, no threads, no
// memory of its own, so that it is tested with literals and by simulation.
#pragma once

#include <cstdint>
#include <vector>

#include "core/id.h"

namespace quire {

struct SchedulerLimits {
  int32_t max_batch_tokens =
      0;                      // rows of a step; at least 64, so that a prompt always advances, and at least
                              // max_sequences, so that every sequence that decodes does so in every step
  int32_t max_sequences = 0;  // running at once
};

// What the scheduler knows of a sequence.
struct ScheduledSequence {
  SeqId id;
  int64_t prompt = 0;      // tokens of the prompt
  int64_t total = 0;       // prompt + generated so far
  int64_t computed = 0;    // positions that are in the caches
  int32_t max_blocks = 0;  // KV blocks it may come to need: prompt + max_tokens
};

struct SchedulerState {
  std::vector<ScheduledSequence>
      running;  // in order of admission; with nothing left to compute while they hold memory
  std::vector<ScheduledSequence> waiting;  // in order of arrival; no more than could be admitted
  int32_t total_blocks = 0;
  int32_t free_slots = 0;    // recurrent state slots
  bool needs_slots = false;  // whether the model has recurrent layers
};

// Tokens [begin, begin + count) of a sequence. A generated token is a decode: count 1, and begin >= prompt.
struct Work {
  SeqId seq;
  int64_t begin = 0;
  int32_t count = 0;
  bool operator==(const Work&) const = default;
};

struct StepPlan {
  std::vector<SeqId> admit;  // move from waiting to running, in this order, before the work
  std::vector<Work> work;    // decodes first
  size_t decodes = 0;        // how many of them
};

// Policy: every running sequence that has a generated token to compute decodes; then prompts advance in order
// of admission, in chunks that end on 64-token boundaries (or at the prompt's end), while the token budget
// lasts; then waiting requests are admitted in order of arrival while a place, a state slot and the blocks of
// their whole possible length exist beside those of the running ones. So a running sequence never runs out of
// blocks, and none is preempted; physical blocks are still taken only as tokens are written.
StepPlan plan_step(const SchedulerState& now, const SchedulerLimits& limits);
// The same into a plan that is used again, whose memory is kept.
void plan_step(const SchedulerState& now, const SchedulerLimits& limits, StepPlan& plan);

}  // namespace quire
