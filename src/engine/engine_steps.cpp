// What the engine does with a plan: submits it as a step, and commits what the oldest step in flight has computed.
#include <algorithm>
#include <chrono>

#include "engine/engine.h"
#include "engine/short_memory.h"

namespace quire {
namespace {

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

Error damaged_logits() {
  return {Fault::kModelFile, "the model's logits are not numbers: its file is damaged or not supported"};
}

// Rows come in the order of their positions: chunks of a prompt do.
void collect_logprobs(const SequenceRows& rows, const SampleOutputs& scored) {
  PromptResults& results = rows.sequence->results;
  PromptLogprobs& kept = *results.logprobs;
  for (int32_t i = rows.scored_row; i < rows.scored_row + rows.scored_count; ++i) {
    const Sampled row = read_sampled(scored, i);
    results.damaged |= row.token < 0;
    kept.logprobs.push_back(row.logprob);
    kept.ranks.push_back(scored.ranks.as<int32_t>()[i]);
    kept.top.insert(kept.top.end(), row.top.begin(), row.top.end());
    kept.top.resize(kept.logprobs.size() * kept.tops);
  }
}

void collect_hidden(const SequenceRows& rows, const Tensor& hidden) {
  for (int32_t i = rows.hidden_row; i < rows.hidden_row + rows.hidden_count; ++i)
    rows.sequence->results.pooled.add({hidden.row<float>(i), static_cast<size_t>(hidden.dim(1))});
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
  backend_->submit(step.buffer, shape);
  if (shape.masks == 0)
    step.masks = StepInFlight::Masks::kNone;
  else if (step.masks == StepInFlight::Masks::kNone)
    write_masks(step);
  step.record.host_seconds = seconds_since(begin);
}

// What the step before the newest one sampled is known, and no step comes behind one whose masks are missing.
void Engine::write_masks_that_wait() {
  if (!in_flight_.empty() && in_flight_.newest().masks == StepInFlight::Masks::kWait) write_masks(in_flight_.newest());
}

// While the backend computes what comes before the sampling.
void Engine::write_masks(StepInFlight& step) {
  masks_.write(step);
  const std::lock_guard lock(inbox_mutex_);
  stats_.masks += step.record.masks;
  stats_.mask_seconds += step.record.mask_seconds;
  stats_.mask_waits += step.record.waited_for_masks ? 1 : 0;
  stats_.slow_masks += step.record.slow_masks;
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
  step.speculates |= rows.drafts > 0;
  if (rows.mask >= 0 && s.pending > 0 && s.constraint->depends()) step.masks = StepInFlight::Masks::kWait;
  step.record.drafts += rows.drafts;
  // The state that the chunk before left is saved before this one changes it.
  if (s.prefix.unsaved > 0) cache_.save_state(s, rows);
  if (!decode && cache_.is_checkpoint(s, end)) s.prefix.unsaved = end;
  (decode ? step.record.decode_rows : step.record.prompt_rows) += work.count;
  s.memory.anchor = decode ? anchor_after_decode(segment) : anchor_after_prompt(segment);
  s.planned = end;
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
    const bool told = within_memory([&] { step.record.accepted += commit_rows(rows, *done); });
    // For what a request is told (alternatives, an embedding) there was none: it alone ends.
    if (!told && !rows.sequence->finished()) finish(*rows.sequence, out_of_memory());
  }
  write_masks_that_wait();
  count_step(step.record);
  speculator_.retired(step);
  release_finished();
  publish_counts();
  if (!step_observer_) return;
  step.record.host_seconds += seconds_since(begin) - (waited_seconds_ - waited);
  step_observer_(step.record);
}

void Engine::count_step(const StepRecord& record) {
  const auto prompt = static_cast<double>(record.prompt_rows),
             all = static_cast<double>(record.prompt_rows + record.decode_rows);
  const std::lock_guard lock(inbox_mutex_);
  ++stats_.steps;
  stats_.prompt_tokens += record.prompt_rows;
  stats_.decode_tokens += record.decode_rows;
  if (all == 0) return;  // moves and copies alone
  stats_.prompt_seconds += record.device_seconds * prompt / all;
  stats_.decode_seconds += record.device_seconds * (all - prompt) / all;
}

// One sequence's results of a step. Returns how many of its drafts were right.
int32_t Engine::commit_rows(const SequenceRows& rows, const StepResults& results) {
  Sequence& s = *rows.sequence;
  if (rows.hidden_count > 0) collect_hidden(rows, results.hidden);
  if (rows.scored_count > 0) collect_logprobs(rows, results.scored);
  if (rows.logit_row >= 0) return commit_tokens(rows, results);
  if (s.request.max_tokens == 0 && rows.prompt_end == s.prompt_tokens()) commit_prompt(s);
  return 0;
}

// Before the first token, or where none follows: what is told of the prompt.
void Engine::tell_begun(Sequence& s) {
  if (std::exchange(s.begun, true)) return;
  delivery_.push(s.stream, TokenEvent::Begun{.cached_tokens = s.prefix.cached,
                                             .prefix_miss = s.prefix.miss.reason,
                                             .diverged_at = s.prefix.miss.diverged_at,
                                             .admitted = s.admitted,
                                             .prompt = std::exchange(s.results.logprobs, nullptr)});
}

int32_t Engine::commit_tokens(const SequenceRows& rows, const StepResults& results) {
  Sequence& s = *rows.sequence;
  SequenceDrafts& d = s.drafts;
  d.drafted += rows.drafts;
  int32_t accepted = 0;
  for (int32_t i = 0; i <= rows.drafts; ++i) {
    Sampled sampled = read_sampled(results.out, rows.logit_row + i);
    const TokenId token = sampled.token;
    TokenId draft = -1;
    if (i < rows.drafts)
      draft = d.by_mtp ? results.drafts.row<int32_t>(s.memory.slot)[i] : d.tokens[static_cast<size_t>(i)];
    const bool right = i < rows.usable && speculator_.accepts(i, token == draft);
    accepted += right;
    if (rows.drafts > 0 && s.request.sampling.has_penalties()) s.unnoted.push_back(token);
    commit_token(s, std::move(sampled), rows.usable == 0);
    if (s.finished() || !right) break;
  }
  d.accepted += accepted;
  // What was computed of drafts that were wrong is computed again: with the tokens that took their places.
  if (rows.drafts > 0) s.planned = s.committed() - 1;
  speculator_.committed(s, rows.drafts, accepted);
  if (rows.drafts > 0) count_drafts(rows.drafts, accepted);
  return accepted;
}

void Engine::count_drafts(int32_t drafts, int32_t accepted) {
  const std::lock_guard lock(inbox_mutex_);
  ++stats_.drafted_sequences;
  stats_.drafts += drafts;
  stats_.drafts_accepted += accepted;
  for (int32_t i = 0; i < accepted; ++i) ++stats_.accepted_at[static_cast<size_t>(i)];
}

// Of one request alone: its grammar has no text that goes on from here, or what else it demands leaves none.
TokenEvent::Ended Engine::dead_end() {
  return {.finish = FinishReason::kError,
          .error = request_error(
              "no token is possible: what the request's constraint allows here is ruled out by its grammar, "
              "allowed_token_ids, bad_words or logit_bias, or takes too long to find")};
}

void Engine::commit_token(Sequence& s, Sampled sampled, bool alone) {
  if (s.results.damaged || (sampled.token < 0 && s.constraint == nullptr))
    return finish(s, {.finish = FinishReason::kError, .error = damaged_logits()});
  if (sampled.token < 0) return finish(s, dead_end());
  // A grammar whose masks are slow takes its time for tokens, too. A step that samples the next one waits for neither.
  const bool by_pool = alone && s.pending == 0 && s.constraint != nullptr && !s.constraint->quick();
  if (s.constraint != nullptr && !by_pool && !s.constraint->commit(sampled.token)) return finish(s, dead_end());
  s.output.push_back(sampled.token);
  tell_begun(s);
  TokenEvent::Token token{.id = sampled.token, .logprob = sampled.logprob, .top = std::move(sampled.top)};
  const std::vector<TokenId>& stops = s.request.stop_tokens;
  const bool ends = std::find(stops.begin(), stops.end(), token.id) != stops.end() ||
                    (!s.request.ignore_eos && model_->tokenizer && model_->tokenizer->is_eog(token.id));
  if (ends) {
    token.ends = FinishReason::kStop;
  } else if (s.outputs() >= s.request.max_tokens) {
    token.ends = FinishReason::kLength;
  }
  if (!by_pool) return tell(s, std::move(token));
  masks_.commit_slowly(s, std::move(token));
}

void Engine::tell(Sequence& s, TokenEvent::Token token) {
  if (s.constraint != nullptr && s.constraint->ended()) token.ends = FinishReason::kStop;
  const FinishReason ends = token.ends;
  delivery_.push(s.stream, std::move(token));
  if (ends != FinishReason::kNone) finish(s, {.finish = ends});
}

// The end of a prompt that nothing follows: an embedding, or log-probabilities of the prompt alone.
void Engine::commit_prompt(Sequence& s) {
  if (s.results.damaged) return finish(s, {.finish = FinishReason::kError, .error = damaged_logits()});
  TokenEvent::Embedding embedding;
  if (s.request.embed) {
    embedding.values = s.results.pooled.normalised();
    if (embedding.values.empty())
      return finish(s, {.finish = FinishReason::kError,
                        .error = Error{Fault::kModelFile,
                                       "the model's hidden states are not numbers: its file is damaged or not "
                                       "supported"}});
  }
  tell_begun(s);
  if (!s.request.embed) return finish(s, {.finish = FinishReason::kLength});
  delivery_.push(s.stream, std::move(embedding));
  finish(s, {.finish = FinishReason::kStop});
}

}  // namespace quire
