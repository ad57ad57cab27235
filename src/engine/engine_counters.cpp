#include "engine/engine_counters.h"

namespace quire {

StepStats EngineCounters::read() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void EngineCounters::count_step(const StepRecord& record) {
  const auto prompt = static_cast<double>(record.prompt_rows),
             all = static_cast<double>(record.prompt_rows + record.decode_rows);
  const std::lock_guard lock(mutex_);
  ++stats_.steps;
  stats_.prompt_tokens += record.prompt_rows;
  stats_.decode_tokens += record.decode_rows;
  if (all == 0) return;  // moves and copies alone
  stats_.prompt_seconds += record.device_seconds * prompt / all;
  stats_.decode_seconds += record.device_seconds * (all - prompt) / all;
}

void EngineCounters::count_masks(const StepRecord& record) {
  const std::lock_guard lock(mutex_);
  stats_.masks += record.masks;
  stats_.mask_seconds += record.mask_seconds;
  stats_.mask_waits += record.waited_for_masks ? 1 : 0;
  stats_.slow_masks += record.slow_masks;
}

void EngineCounters::count_drafts(int32_t drafts, int32_t accepted) {
  const std::lock_guard lock(mutex_);
  ++stats_.drafted_sequences;
  stats_.drafts += drafts;
  stats_.drafts_accepted += accepted;
  for (int32_t i = 0; i < accepted; ++i) ++stats_.accepted_at[static_cast<size_t>(i)];
}

void EngineCounters::count_host_seconds(double seconds) {
  const std::lock_guard lock(mutex_);
  stats_.host_seconds += seconds;
}

void EngineCounters::note_caches(const CacheManager::Counts& counts, const PoolUses& pools,
                                 const CacheManager::HostUse& host) {
  const std::lock_guard lock(mutex_);
  stats_.prefix_queries = counts.queries;
  stats_.prefix_hits = counts.hits;
  stats_.prefix_misses = counts.misses;
  stats_.preemptions = counts.preemptions;
  stats_.blocks_swapped_out = counts.swapped_out;
  stats_.blocks_swapped_in = counts.swapped_in;
  stats_.pools = pools;
  stats_.host_pages_used = host.pages_used;
  stats_.host_pages_total = host.pages_total;
  stats_.host_states = host.states;
  stats_.host_bytes_stored = host.bytes_stored;
  stats_.host_bytes_loaded = host.bytes_loaded;
  stats_.host_tokens_loaded = host.tokens_loaded;
}

}  // namespace quire
