// What the engine does before a step: looks at who runs and who waits, has the step planned, admits and submits.
#include <algorithm>
#include <chrono>

#include "engine/engine.h"
#include "engine/sharing.h"

namespace quire {
namespace {

// Steps in a row that may leave out a sequence's next token for prompts that wait for their first one.
constexpr int32_t kMostSkipped = 4;

}  // namespace

void Engine::take_snapshot() {
  snapshot_.running.clear();
  snapshot_.waiting.clear();
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
                                 .finished = s->finished(),
                                 .skipped_steps = s->skipped_steps,
                                 .drafts = s->drafts.count,
                                 .waits_for_mask = SequenceMasks::waits(*s)});
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
  look_at_waiting();
}

// Tells of tokens that the pool has committed.
void Engine::take_masks() {
  for (const auto& s : running_.all()) {
    std::optional<SequenceMasks::Committed> made = SequenceMasks::take(*s);
    if (!made) continue;
    if (made->accepted)
      tell(*s, std::move(made->token));
    else
      finish(*s, dead_end());
  }
}

void Engine::look_at_waiting() {
  candidates_.clear();
  beginnings_.clear();
  snapshot_.clients.clear();
  if (running_.free_slots() == 0) return;
  for (const auto& r : running_.all())
    if (cache_.is_adding_prefixes(*r)) note_beginning(*r);
  queue_.age(planned_steps_);
  queue_.begin(planned_steps_);
  // Found tokens that penalties have to be told of: a step has room for those of one context. And what comes back from
  // the host for them: one step moves so much.
  int64_t past = 0, moves = 0;
  int32_t wanted = std::min(running_.free_slots(), kMostAdmitted) + kLookAhead, deferred = 0;
  while (wanted > 0 && deferred < kMostDeferred) {
    const std::optional<WaitingQueue::Entry> next = queue_.next();
    if (!next) break;
    Sequence& s = *waiting_.at(static_cast<int32_t>(next->id));
    cache_.find_prefix(s);
    // Waiting ones get numbers beyond those of all places.
    ScheduledSequence& of = snapshot_.waiting.emplace_back();
    of = {.id = SeqId{plan_.max_sequences + static_cast<int32_t>(candidates_.size())},
          .prompt = s.prompt_tokens(),
          .total = s.prompt_tokens(),
          .computed = s.prefix.match.usable,
          .max_blocks = s.memory.most[kKvPool],
          .windows = CacheManager::set_aside(s),
          .held = static_cast<int32_t>(s.prefix.match.usable / kBlockTokens),
          .unused = s.prefix.match.unused,
          .priority = next->priority,
          .age = next->age,
          .client = next->client,
          .arrival = next->arrival};
    candidates_.push_back(&s);
    if (cache_.prefix_cache() != nullptr && s.prefix.reads) {
      if (has_shared_prefix(s))
        defer(of, Deferral::kSharedPrefix);
      else if (s.request.sampling.has_penalties() && (past += s.prefix.match.usable) > plan_.context)
        defer(of, Deferral::kHistory);
      else if ((moves += s.prefix.match.moves) > cache_.most_moves())
        defer(of, Deferral::kHostMoves);
    }
    note_beginning(s);
    if (of.deferred)
      ++deferred;
    else
      --wanted;
  }
  snapshot_.clients.assign(queue_.clients().begin(), queue_.clients().end());
  // Where sequences are asked to save their states is known only now.
  for (size_t i = 0; i < candidates_.size(); ++i) snapshot_.waiting[i].cut = cache_.first_cut(*candidates_[i]);
  for (size_t i = 0; i < snapshot_.running.size(); ++i) snapshot_.running[i].cut = cache_.next_cut(*running_.all()[i]);
}

// Whether somebody who runs, or whom the step looks at before, computes what a waiting request can use.
bool Engine::has_shared_prefix(const Sequence& s) const {
  if (s.prefix.hashes.at.empty()) return false;
  const ResumeNeeds needs{.states = cache_.recurrent(), .windows = cache_.has_windows()};
  return std::any_of(beginnings_.begin(), beginnings_.end(), [&](const auto& b) {
    return b.first == s.prefix.hashes.at[0].low && must_wait(s, *b.second, needs);
  });
}

void Engine::note_beginning(Sequence& s) {
  if (!s.prefix.hashes.at.empty()) beginnings_.emplace_back(s.prefix.hashes.at[0].low, &s);
}

void Engine::defer(ScheduledSequence& s, Deferral why) {
  s.deferred = true;
  ++record_.deferred[static_cast<size_t>(why)];
}

void Engine::note_admission() {
  const auto admitted = static_cast<int32_t>(step_plan_.admit.size());
  record_.step = planned_steps_;
  record_.time = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  record_.admitted = admitted;
  record_.running = running_.size();
  record_.waiting = static_cast<int32_t>(waiting_.size());
  record_.first_tokens = step_plan_.first_tokens;
  record_.skipped = static_cast<int32_t>(step_plan_.skipped.size());
  record_.queued = record_.waiting - (static_cast<int32_t>(candidates_.size()) - admitted);
  int32_t rest = record_.waiting;
  for (const int32_t n : record_.deferred) rest -= n;
  // Those that were not looked at wait for those before them: for a place, or behind many that wait for a prefix.
  const Deferral behind = candidates_.empty() ? Deferral::kPlaces : Deferral::kSharedPrefix;
  const Deferral kWhy[] = {behind, Deferral::kRunning, Deferral::kPlaces, Deferral::kBlocks, Deferral::kBudget};
  record_.deferred[static_cast<size_t>(kWhy[static_cast<size_t>(step_plan_.stop)])] += rest;
}

bool Engine::schedule() {
  record_ = {};
  speculator_.offer(running_);
  masks_.start_slow(running_);
  take_snapshot();
  plan_step(snapshot_,
            {.max_batch_tokens = plan_.max_batch_tokens,
             .max_sequences = plan_.max_sequences,
             .max_swaps = plan_.most_swaps(),
             .max_sampled_rows = plan_.sampled_rows(),
             .max_parts = plan_.decode_parts,
             .patience = plan_.patience_steps,
             .first_token_threshold = plan_.first_token_threshold,
             .most_skipped = kMostSkipped},
            step_plan_);
  if (step_plan_.empty()) return false;
  ++planned_steps_;
  admit_planned();
  note_admission();
  return true;
}

void Engine::admit_planned() {
  if (step_plan_.admit.empty()) return;
  const auto index = [&](SeqId number) { return static_cast<size_t>(number.v - plan_.max_sequences); };
  for (const SeqId number : step_plan_.admit) {
    const RequestId id = candidates_[index(number)]->id;
    queue_.admit(id.v, planned_steps_);
    Sequence& s = running_.add(std::move(waiting_.extract(id.v).mapped()));
    s.admitted = Clock::now();
    speculator_.begin(s);
    cache_.admit(s);
    for (Work& w : step_plan_.work)
      if (w.seq == number) w.seq = SeqId{s.memory.slot};
  }
  publish_counts();
  const std::lock_guard lock(inbox_mutex_);
  queued_ -= static_cast<int64_t>(step_plan_.admit.size());
}

}  // namespace quire
