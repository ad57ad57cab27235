// What the engine does before a step: looks at who runs and who waits, has the step planned, admits and submits.
#include <algorithm>
#include <chrono>

#include "engine/engine.h"
#include "engine/sharing.h"

namespace quire {
namespace {

// Steps in a row that may leave out a sequence's next token for prompts that wait for their first one.
constexpr int32_t kMostPassed = 4;

}  // namespace

void Engine::take_snapshot() {
  snapshot_.running.clear();
  snapshot_.waiting.clear();
  for (const auto& s : runner_.running()) {
    ScheduledSequence& of = snapshot_.running.emplace_back();
    of = {.id = SeqId{s->place},
          .prompt = s->prompt_tokens(),
          .total = s->to_compute(),
          .computed = s->planned,
          .max_blocks = s->max_blocks,
          .held = s->blocks_held(),
          .swapped = static_cast<int32_t>(s->host.size()),
          .cut = runner_.next_cut(*s),
          .finished = s->finished,
          .passed = s->passed};
  }
  snapshot_.total_blocks = runner_.blocks().total();
  snapshot_.available_blocks = runner_.blocks().available();
  snapshot_.host_blocks = runner_.host_blocks().total();
  snapshot_.free_host_blocks = runner_.host_blocks().available();
  snapshot_.free_slots = runner_.free_slots();
  snapshot_.needs_slots = model_->model->config().hybrid;
  // What swapping out would gain matters only if this step could run short.
  const int64_t most = 2 * std::ssize(snapshot_.running) + options_.max_batch_tokens / kBlockTokens + 1;
  if (snapshot_.host_blocks > 0 && snapshot_.available_blocks < most)
    for (size_t i = 0; i < snapshot_.running.size(); ++i)
      snapshot_.running[i].sole = runner_.sole_blocks(*runner_.running()[i]);
  look_at_waiting();
}

void Engine::look_at_waiting() {
  if (runner_.free_places() == 0) return;
  const auto most = std::min(std::ssize(waiting_), std::ptrdiff_t{runner_.free_places()} + kLookAhead);
  const bool recurrent = model_->model->config().hybrid;
  // Found tokens that penalties have to be told of: a step has room for those of one context. And what comes back from the
  // host for them: one step moves so much.
  int64_t past = 0, moves = 0;
  for (std::ptrdiff_t i = 0; i < most; ++i) {
    Sequence& s = *waiting_[static_cast<size_t>(i)];
    runner_.find_prefix(s);
    // Waiting ones get numbers beyond those of all places.
    ScheduledSequence& of = snapshot_.waiting.emplace_back();
    of = {.id = SeqId{options_.max_sequences + static_cast<int32_t>(i)},
          .prompt = s.prompt_tokens(),
          .total = s.prompt_tokens(),
          .computed = s.match.usable,
          .max_blocks = s.max_blocks,
          .held = static_cast<int32_t>(s.match.usable / kBlockTokens),
          .unused = s.match.unused,
          .priority = s.request.priority,
          .age = planned_steps_ - s.arrived};
    if (runner_.prefix_cache() == nullptr || s.whole) continue;
    bool shared = false;
    for (const auto& r : runner_.running()) shared = shared || must_wait(s, *r, recurrent);
    for (std::ptrdiff_t j = 0; j < i && !shared; ++j)
      shared = must_wait(s, *waiting_[static_cast<size_t>(j)], recurrent);
    if (shared)
      defer(of, Deferral::kSharedPrefix);
    else if (s.request.sampling.has_penalties() && (past += s.match.usable) > options_.context)
      defer(of, Deferral::kHistory);
    else if ((moves += s.match.moves) > runner_.most_moves())
      defer(of, Deferral::kHostMoves);
  }
  // Where sequences are asked to save their states is known only now.
  for (std::ptrdiff_t i = 0; i < most; ++i)
    snapshot_.waiting[static_cast<size_t>(i)].cut = runner_.first_cut(*waiting_[static_cast<size_t>(i)]);
  for (size_t i = 0; i < snapshot_.running.size(); ++i)
    snapshot_.running[i].cut = runner_.next_cut(*runner_.running()[i]);
}

void Engine::defer(ScheduledSequence& s, Deferral why) {
  s.deferred = true;
  ++record_.deferred[static_cast<size_t>(why)];
}

void Engine::note_admission() {
  const auto admitted = static_cast<int32_t>(plan_.admit.size());
  record_.step = planned_steps_;
  record_.time = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  record_.admitted = admitted;
  record_.running = static_cast<int32_t>(runner_.running().size());
  record_.waiting = static_cast<int32_t>(waiting_.size());
  record_.first_tokens = plan_.first_tokens;
  record_.passed = static_cast<int32_t>(plan_.passed.size());
  int32_t rest = record_.waiting;
  for (const int32_t n : record_.deferred) rest -= n;
  // Of those that were not looked at it is known that there is no place for them.
  constexpr Deferral kWhy[] = {Deferral::kPlaces, Deferral::kRunning, Deferral::kPlaces, Deferral::kBlocks,
                               Deferral::kBudget};
  record_.deferred[static_cast<size_t>(kWhy[static_cast<size_t>(plan_.stop)])] = rest;
}

void Engine::plan_and_submit(Clock::time_point begin) {
  record_ = {};
  take_snapshot();
  plan_step(snapshot_,
            {.max_batch_tokens = options_.max_batch_tokens,
             .max_sequences = options_.max_sequences,
             .max_swaps = options_.most_swaps(),
             .patience = options_.patience_steps,
             .first_token_threshold = options_.first_token_threshold,
             .most_passed = kMostPassed},
            plan_);
  if (plan_.empty()) return;
  ++planned_steps_;
  admit_planned();
  note_admission();
  StepRecord& submitted = runner_.submit(plan_, record_);
  submitted.host_seconds = std::chrono::duration<double>(Clock::now() - begin).count();
}

void Engine::admit_planned() {
  if (plan_.admit.empty()) return;
  const auto index = [&](SeqId number) { return static_cast<size_t>(number.v - options_.max_sequences); };
  for (const SeqId number : plan_.admit) {
    std::unique_ptr<Sequence>& waiting = waiting_[index(number)];
    const Sequence& s = *waiting;
    runner_.admit(std::move(waiting));
    for (Work& w : plan_.work)
      if (w.seq == number) w.seq = SeqId{s.place};
  }
  std::erase(waiting_, nullptr);
  publish_counts();
  const std::lock_guard lock(inbox_mutex_);
  queued_ -= static_cast<int64_t>(plan_.admit.size());
}

}  // namespace quire
