// What the engine does with a plan: submits it as a step, and commits what the oldest step in flight has computed.
#include <algorithm>
#include <chrono>
#include <utility>

#include "engine/engine.h"
#include "engine/short_memory.h"

namespace quire {
namespace {

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

void Engine::submit_step(Clock::time_point begin) {
  StepInFlight& step = in_flight_.begin();
  step.record = record_;
  cache_.begin_step();
  for (const Preemption& p : step_plan_.preempt) cache_.swap_out(running_.at(p.seq.v), p.blocks);
  for (const SeqId id : step_plan_.resume) cache_.swap_in(running_.at(id.v));
  writer_.begin(step.buffer, step_plan_);
  for (size_t i = 0; i < step_plan_.work.size(); ++i) add_rows(step_plan_.work[i], i < step_plan_.decodes, step);
  for (const SeqId id : step_plan_.skipped) ++running_.at(id.v).skipped_steps;
  const StepShape shape = writer_.end(cache_.step_moves(step.record));
  cache_.end_step();
  backend_->submit(step.buffer, shape, std::exchange(slice_, {}));
  choose_pictures();
  if (shape.masks == 0)
    step.masks = StepInFlight::Masks::kNone;
  else if (step.masks == StepInFlight::Masks::kNone)
    write_masks(step);
  step.record.host_seconds = seconds_since(begin);
}

// Once what the newest step goes on from is known. No step comes behind one whose masks are missing.
void Engine::write_masks_that_wait() {
  if (in_flight_.empty() || in_flight_.newest().masks != StepInFlight::Masks::kWait) return;
  StepInFlight& step = in_flight_.newest();
  const bool known = std::ranges::all_of(step.rows, [](const SequenceRows& rows) {
    return rows.mask < 0 || rows.sequence->pending <= 1;  // the token that the step itself samples
  });
  if (known) write_masks(step);
}

// While the backend computes what comes before the sampling.
void Engine::write_masks(StepInFlight& step) {
  masks_.write(step);
  counters_.count_masks(step.record);
}

void Engine::add_rows(const Work& work, bool decode, StepInFlight& step) {
  Sequence& s = running_.at(work.seq.v);
  const int64_t end = work.begin + work.count;
  QUIRE_CHECK(work.begin == s.planned && !s.finished(), "sequence {} is planned from {}, not {}", s.id.v, work.begin,
              s.planned);
  cache_.reserve(s, work.begin, end);
  SequenceRows& rows = step.rows.emplace_back();
  rows.sequence = &s;
  // Where the first draft is wrong, its row is computed again.
  rows.settled = decode ? work.begin + 1 : end;
  const Segment segment = writer_.add(s, work, decode, rows);
  if (!decode && !s.pictures.empty()) writer_.add_pictures(s, segment, encoder_);
  step.speculates |= rows.drafts > 0;
  if (rows.mask >= 0 && s.pending > 0 && s.constraint->depends()) step.masks = StepInFlight::Masks::kWait;
  step.record.drafts += rows.drafts;
  // The state that the chunk before left is saved before this one changes it.
  if (s.prefix.unsaved > 0) cache_.save_state(s, rows);
  if (!decode && cache_.is_checkpoint(s, end)) s.prefix.unsaved = end;
  (decode ? step.record.decode_rows : step.record.prompt_rows) += work.count;
  s.memory.anchor = decode ? anchor_after_decode(segment) : anchor_after_prompt(segment);
  s.planned = end;
  s.last_step = planned_steps_;
  s.skipped_steps = 0;
  ++s.in_flight;
  s.pending += rows.logit_row >= 0;
}

Result<StepResults> Engine::wait_for(StepInFlight& step) {
  const auto begin = Clock::now();
  Result<StepResults> done = backend_->wait(step.buffer);
  waited_seconds_ += seconds_since(begin);
  for (const SequenceRows& rows : step.rows) {
    Sequence& s = *rows.sequence;
    --s.in_flight;
    s.pending -= rows.logit_row >= 0;
    s.failed |= !done.ok();
    cache_.publish(rows, !s.failed);
    cache_.release_windows(rows);
  }
  return done;
}

void Engine::retire() {
  const auto begin = Clock::now();
  const double waited = waited_seconds_;
  StepInFlight& step = in_flight_.retire();
  Result<StepResults> done = wait_for(step);
  if (!done.ok()) return fail(done.take_error());
  step.record.device_seconds = done->seconds;
  for (const SequenceRows& rows : step.rows) {
    if (rows.sequence->finished()) continue;
    const bool told = within_memory([&] { step.record.accepted += committer_.commit(rows, *done); });
    // For what a request is told (alternatives, an embedding) there was none: it alone ends.
    if (!told && !rows.sequence->finished()) committer_.finish(*rows.sequence, out_of_memory());
  }
  write_masks_that_wait();
  counters_.count_step(step.record);
  speculator_.retired(step);
  release_finished();
  publish_caches();
  if (!step_observer_) return;
  step.record.host_seconds += seconds_since(begin) - (waited_seconds_ - waited);
  step_observer_(step.record);
}

}  // namespace quire
