// What an engine has done so far, in numbers, for everybody who asks. Internal to the engine, but for StepStats.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>

#include "engine/cache_manager.h"
#include "engine/speculative_options.h"
#include "engine/step_record.h"

namespace quire {

struct StepStats {
  int64_t steps = 0, prompt_tokens = 0, decode_tokens = 0;
  // Drafts that steps verified, how many sequences had some so often, and how many of the i-th drafts were right.
  int64_t drafted_sequences = 0, drafts = 0, drafts_accepted = 0;
  std::array<int64_t, kMostDrafts> accepted_at{};
  double prompt_seconds = 0.0, decode_seconds = 0.0;  // a mixed step's time is shared by rows
  // Of the prompts that were admitted: tokens, those of them that the prefix cache had, and why it had no more.
  int64_t prefix_queries = 0, prefix_hits = 0;
  std::array<int64_t, kPrefixMisses> prefix_misses{};
  int64_t preemptions = 0, blocks_swapped_out = 0, blocks_swapped_in = 0;
  PoolUses pools;       // of the caches, now
  int64_t waiting = 0;  // requests that have no batch slot yet, now
  // The prefix cache's memory on the host: pages now, states among what lies there, bytes that went there and came back
  // so far, and tokens of prompts whose blocks came back.
  int64_t host_pages_used = 0, host_pages_total = 0, host_states = 0;
  int64_t host_bytes_stored = 0, host_bytes_loaded = 0, host_tokens_loaded = 0;
  int64_t masks = 0;          // of rows whose token was constrained, and
  double mask_seconds = 0.0;  // what computing them took
  int64_t mask_waits = 0;     // steps in which the device waited for them
  int64_t slow_masks = 0;     // of the former, those that sequences waited for while steps went on without them
  double host_seconds = 0.0;  // in step(), without waiting for the backend: planning, submitting, committing
};

// The stepping thread counts, each thing where it happens; any thread reads. A mutex of its own, held for no longer
// than the numbers are written or copied, guards them, so that a reader sees what one call wrote together.
class EngineCounters {
 public:
  // Any thread. `waiting` is not counted here, but by the inbox.
  StepStats read() const;

  // All else: the stepping thread.
  // A step that has been retired: its rows, and the seconds that the device computed them.
  void count_step(const StepRecord& record);
  // The masks of a step, once they are written.
  void count_masks(const StepRecord& record);
  // So many drafts of one sequence were verified, of which the first `accepted` were right.
  void count_drafts(int32_t drafts, int32_t accepted);
  // Time of step() that was not spent on waiting for the backend.
  void count_host_seconds(double seconds);
  // What the caches have come to: these replace what was said of them before.
  void note_caches(const CacheManager::Counts& counts, const PoolUses& pools, const CacheManager::HostUse& host);

 private:
  mutable std::mutex mutex_;
  StepStats stats_;
};

}  // namespace quire
