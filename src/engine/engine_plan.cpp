// What the engine does before a step: looks at who runs and who waits, has the step planned, admits and submits.
#include <algorithm>
#include <chrono>

#include "engine/engine.h"

namespace quire {
namespace {

// Steps in a row that may leave out a sequence's next token for prompts that wait for their first one.
constexpr int32_t kMostSkipped = 4;

}  // namespace

void Engine::take_snapshot() {
  snapshot_.running.clear();
  for (const auto& s : running_.all())
    snapshot_.running.push_back({.id = SeqId{s->memory.slot},
                                 .prompt = s->prompt_tokens(),
                                 .total = s->to_compute(),
                                 .computed = s->planned,
                                 .max_blocks = s->memory.most[kKvPool],
                                 .windows = CacheManager::set_aside(*s),
                                 .held = s->memory.blocks_held(),
                                 .swapped = static_cast<int32_t>(s->memory.swapped.size()),
                                 .cut = cache_.next_cut(*s),
                                 .ready = encoder_.ready(*s, s->planned),
                                 .whole = encoder_.whole(*s),
                                 .finished = s->finished(),
                                 .skipped_steps = s->skipped_steps,
                                 .drafts = s->drafts.count,
                                 .waits_for_mask = SequenceMasks::waits(*s),
                                 .idle_steps = planned_steps_ - s->last_step,
                                 .in_flight = s->in_flight > 0});
  snapshot_.total_blocks = cache_.blocks().total();
  snapshot_.available_blocks = cache_.blocks().available();
  snapshot_.host_blocks = cache_.host_blocks().total();
  snapshot_.free_host_blocks = cache_.host_blocks().available();
  snapshot_.free_windows = cache_.free_windows(snapshot_.running);
  snapshot_.free_slots = cache_.recurrent() ? running_.free_slots() : 0;
  snapshot_.needs_slots = cache_.recurrent();
  // What swapping out would gain matters only if this step could run short.
  const int64_t most = 2 * std::ssize(snapshot_.running) + plan_.max_batch_tokens / kBlockTokens + 1;
  if (snapshot_.host_blocks > 0 && snapshot_.available_blocks < most)
    for (size_t i = 0; i < snapshot_.running.size(); ++i)
      snapshot_.running[i].exclusive = cache_.exclusive_blocks(*running_.all()[i]);
  waiting_.look(running_, cache_, encoder_, planned_steps_, snapshot_, record_);
  // Others that begin alike may be asked by now to save their states where these part.
  if (waiting_.looked_at() == 0) return;
  for (size_t i = 0; i < snapshot_.running.size(); ++i) snapshot_.running[i].cut = cache_.next_cut(*running_.all()[i]);
}

void Engine::note_admission() {
  const auto admitted = static_cast<int32_t>(step_plan_.admit.size());
  record_.step = planned_steps_;
  record_.time = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  record_.admitted = admitted;
  record_.running = running_.size();
  record_.waiting = waiting_.size();
  record_.first_tokens = step_plan_.first_tokens;
  record_.skipped = static_cast<int32_t>(step_plan_.skipped.size());
  record_.queued = record_.waiting - (waiting_.looked_at() - admitted);
  int32_t rest = record_.waiting;
  for (const int32_t n : record_.deferred) rest -= n;
  // Those that were not looked at wait for those before them: for a place, or behind many that wait for a prefix.
  const Deferral behind = waiting_.looked_at() == 0 ? Deferral::kPlaces : Deferral::kSharedPrefix;
  const Deferral kWhy[] = {behind, Deferral::kRunning, Deferral::kPlaces, Deferral::kBlocks, Deferral::kBudget};
  record_.deferred[static_cast<size_t>(kWhy[static_cast<size_t>(step_plan_.stop)])] += rest;
}

// Begins with the next pictures, for which others may have to go: not while a step is planned that counts on these. Who
// waits is known from the last look.
void Engine::choose_pictures() {
  if (!plan_.encoder.any() || encoder_.busy()) return;
  needs_.clear();
  for (const auto& s : running_.all())
    if (!s->finished()) needs_.push_back({s.get(), s->planned});
  for (const Sequence* const s : waiting_.candidates())
    if (s->stage == Sequence::Stage::kWaiting) needs_.push_back({s, s->prefix.match.usable});
  encoder_.choose(needs_);
}

bool Engine::schedule(bool drafts) {
  record_ = {};
  slice_ = encoder_.advance();
  speculator_.offer(running_);
  masks_.start_slow(running_);
  take_snapshot();
  const int32_t least = std::max(plan_.least_rows(), plan_.max_sequences);
  plan_step(snapshot_,
            {.max_batch_tokens = std::max(least, plan_.max_batch_tokens - encoder_.rows_taken(slice_)),
             .least_chunk = plan_.encoder.whole,
             .max_sequences = plan_.max_sequences,
             .max_swaps = plan_.most_swaps(),
             .max_sampled_rows = plan_.sampled_rows(),
             .max_parts = plan_.decode_parts,
             .stages = drafts ? 1 : plan_.stage_count(),
             .patience = plan_.patience_steps,
             .first_token_threshold = plan_.first_token_threshold,
             .most_skipped = kMostSkipped},
            step_plan_);
  if (step_plan_.empty() && slice_.batch == nullptr) {
    choose_pictures();
    slice_ = encoder_.advance();
    if (slice_.batch == nullptr) return false;
  }
  ++planned_steps_;
  admit_planned();
  note_admission();
  return true;
}

void Engine::admit_planned() {
  if (step_plan_.admit.empty()) return;
  for (const SeqId number : step_plan_.admit) {
    Sequence& s = running_.add(waiting_.admit(number, planned_steps_));
    s.admitted = Clock::now();
    speculator_.begin(s);
    cache_.admit(s);
    for (Work& w : step_plan_.work)
      if (w.seq == number) w.seq = SeqId{s.memory.slot};
  }
  publish_caches();
  inbox_.leave_queue(std::ssize(step_plan_.admit));
}

}  // namespace quire
