#include "engine/waiting_requests.h"

#include <algorithm>

#include "engine/sharing.h"

namespace quire {

WaitingRequests::WaitingRequests(const EnginePlan& plan)
    : plan_(plan), queue_({.top_priority = plan.top_priority, .ageing_steps = plan.ageing_steps}) {
  candidates_.reserve(kMostLookedAt);
  beginnings_.reserve(kMostLookedAt + static_cast<size_t>(plan.max_sequences));
  queue_.reserve(kMostLookedAt);
}

void WaitingRequests::add(std::unique_ptr<Sequence> s, int64_t step) {
  queue_.add(s->id.v, s->request.client, s->request.priority, step);
  sequences_.emplace(s->id.v, std::move(s));
}

std::unique_ptr<Sequence> WaitingRequests::remove(RequestId id) {
  queue_.remove(id.v);
  return std::move(sequences_.extract(id.v).mapped());
}

std::unique_ptr<Sequence> WaitingRequests::admit(SeqId number, int64_t step) {
  const RequestId id = candidates_[static_cast<size_t>(number.v - plan_.max_sequences)]->id;
  queue_.admit(id.v, step);
  return std::move(sequences_.extract(id.v).mapped());
}

void WaitingRequests::end(uint64_t client) {
  queue_.end(client);
}

void WaitingRequests::look(const RunningSet& running, CacheManager& cache, Encoder& encoder, int64_t step,
                           SchedulerState& snapshot, StepRecord& record) {
  candidates_.clear();
  beginnings_.clear();
  snapshot.waiting.clear();
  snapshot.clients.clear();
  if (running.free_slots() == 0) return;
  for (const auto& r : running.all())
    if (cache.is_adding_prefixes(*r)) note_beginning(*r);
  queue_.age(step);
  queue_.begin(step);
  Used used;
  int32_t wanted = std::min(running.free_slots(), kMostAdmitted) + kLookAhead, deferred = 0;
  while (wanted > 0 && deferred < kMostDeferred) {
    const std::optional<WaitingQueue::Entry> next = queue_.next();
    if (!next) break;
    Sequence& s = *sequences_.at(static_cast<int32_t>(next->id));
    cache.find_prefix(s);
    ScheduledSequence& of = add_candidate(s, *next, snapshot);
    std::optional<Deferral> why = reason_to_defer(s, cache, used);
    of.ready = encoder.ready(s, of.computed);
    of.whole = encoder.whole(s);
    if (!why && of.ready <= of.computed) why = Deferral::kPictures;
    note_beginning(s);
    of.deferred = why.has_value();
    if (why) {
      ++record.deferred[static_cast<size_t>(*why)];
      ++deferred;
    } else {
      --wanted;
    }
  }
  snapshot.clients.assign(queue_.clients().begin(), queue_.clients().end());
  // Where sequences are asked to save their states is known only now.
  for (size_t i = 0; i < candidates_.size(); ++i) snapshot.waiting[i].cut = cache.first_cut(*candidates_[i]);
}

ScheduledSequence& WaitingRequests::add_candidate(Sequence& s, const WaitingQueue::Entry& entry,
                                                  SchedulerState& snapshot) {
  ScheduledSequence& of = snapshot.waiting.emplace_back();
  // Waiting ones get numbers beyond those of all places.
  of = {.id = SeqId{plan_.max_sequences + static_cast<int32_t>(candidates_.size())},
        .prompt = s.prompt_tokens(),
        .total = s.prompt_tokens(),
        .computed = s.prefix.match.usable,
        .max_blocks = s.memory.most[kKvPool],
        .windows = CacheManager::set_aside(s),
        .held = static_cast<int32_t>(s.prefix.match.usable / kBlockTokens),
        .unused = s.prefix.match.unused,
        .priority = entry.priority,
        .age = entry.age,
        .client = entry.client,
        .arrival = entry.arrival};
  candidates_.push_back(&s);
  return of;
}

std::optional<Deferral> WaitingRequests::reason_to_defer(const Sequence& s, const CacheManager& cache,
                                                         Used& used) const {
  if (cache.prefix_cache() == nullptr || !s.prefix.reads) return std::nullopt;
  if (has_shared_prefix(s, cache)) return Deferral::kSharedPrefix;
  // Found tokens that penalties have to be told of: a step has room for those of one context. And what comes back from
  // the host for them: one step moves so much.
  if (s.request.sampling.has_penalties() && (used.past += s.prefix.match.usable) > plan_.context)
    return Deferral::kHistory;
  if ((used.moves += s.prefix.match.moves) > cache.most_moves()) return Deferral::kHostMoves;
  return std::nullopt;
}

// Whether somebody who runs, or whom the step looks at before, computes what a waiting request can use.
bool WaitingRequests::has_shared_prefix(const Sequence& s, const CacheManager& cache) const {
  if (s.prefix.hashes.at.empty()) return false;
  const ResumeNeeds needs{.states = cache.recurrent(), .windows = cache.has_windows()};
  return std::any_of(beginnings_.begin(), beginnings_.end(), [&](const auto& b) {
    return b.first == s.prefix.hashes.at[0].low && must_wait(s, *b.second, needs);
  });
}

void WaitingRequests::note_beginning(Sequence& s) {
  if (!s.prefix.hashes.at.empty()) beginnings_.emplace_back(s.prefix.hashes.at[0].low, &s);
}

}  // namespace quire
