// States and limits for tests of plan_step, in few words.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/prompt_image.h"
#include "engine/scheduler.h"
#include "ops/segments.h"

namespace quire::test {

inline int32_t blocks_for(int64_t tokens) {
  return static_cast<int32_t>((tokens + kBlockTokens - 1) / kBlockTokens);
}

// A sequence that holds the blocks of what is computed, and may come to need one more than it has tokens, or
// `max_blocks`.
inline ScheduledSequence seq(int32_t id, int64_t prompt, int64_t total, int64_t computed, int32_t max_blocks = 0) {
  return {.id = SeqId{id},
          .prompt = prompt,
          .total = total,
          .computed = computed,
          .max_blocks = std::max(max_blocks, blocks_for(total) + 1),
          .held = blocks_for(computed),
          .exclusive = blocks_for(computed)};
}
inline ScheduledSequence fresh(int32_t id, int64_t prompt, int32_t max_blocks = 0) {
  return seq(id, prompt, prompt, 0, max_blocks);
}
inline ScheduledSequence with(ScheduledSequence s, void (*change)(ScheduledSequence&)) {
  change(s);
  return s;
}
inline ScheduledSequence hit(int32_t id, int64_t prompt, int64_t cached) {
  ScheduledSequence s = seq(id, prompt, prompt, cached);
  s.unused = s.held;
  return s;
}
inline SchedulerState state(std::vector<ScheduledSequence> running, std::vector<ScheduledSequence> waiting,
                            int32_t total_blocks = 1000, int32_t free_slots = 16, bool needs_slots = true,
                            int32_t host_blocks = 0) {
  SchedulerState now{.running = std::move(running),
                     .waiting = std::move(waiting),
                     .total_blocks = total_blocks,
                     .available_blocks = total_blocks,
                     .host_blocks = host_blocks,
                     .free_host_blocks = host_blocks,
                     .free_slots = free_slots,
                     .needs_slots = needs_slots};
  for (const ScheduledSequence& s : now.running) {
    now.available_blocks -= s.held - s.swapped;
    now.free_host_blocks -= s.swapped;
  }
  return now;
}
// Of these clients, who have so many requests running.
inline SchedulerState of_clients(SchedulerState now, std::vector<ScheduledClient> clients) {
  now.clients = std::move(clients);
  return now;
}
inline ScheduledSequence from(int32_t client, ScheduledSequence s) {
  s.client = client;
  s.arrival = s.id.v;
  return s;
}
inline SchedulerLimits limits(int32_t tokens, int32_t sequences) {
  return {.max_batch_tokens = tokens, .max_sequences = sequences, .max_swaps = 1000, .patience = 100};
}
// `prompts` that wait for a first token go before generated tokens, which wait for two steps in a row at most.
inline SchedulerLimits first_tokens(int32_t tokens, int32_t sequences, int32_t prompts) {
  SchedulerLimits l = limits(tokens, sequences);
  l.first_token_threshold = prompts;
  l.most_skipped = 2;
  return l;
}

// Steps sample so many rows: beyond one of each sequence they are drafts.
inline SchedulerLimits drafting(SchedulerLimits l, int32_t rows) {
  l.max_sampled_rows = rows;
  return l;
}

// Pictures have so many tokens at most, and are computed whole.
inline SchedulerLimits whole_pictures(SchedulerLimits l, int32_t tokens) {
  l.least_chunk = tokens;
  return l;
}
// A picture at positions [begin, end) of a prompt.
inline PromptImage picture_at(int64_t begin, int64_t end) {
  PromptImage image;
  image.position = begin;
  image.rows = 1;
  image.columns = static_cast<int32_t>(end - begin);
  return image;
}

// Keys of generated tokens have so many parts of 256 in a step.
inline SchedulerLimits with_parts(SchedulerLimits l, int64_t parts) {
  l.max_parts = parts;
  return l;
}

}  // namespace quire::test
