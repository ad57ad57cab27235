#include "engine/committer.h"

#include <algorithm>
#include <utility>

namespace quire {
namespace {

TokenEvent::Ended failed_by(Error error) {
  return {.finish = FinishReason::kError, .error = std::move(error)};
}

TokenEvent::Ended damaged(std::string_view what) {
  return failed_by(file_error("the model's {} are not numbers: its file is damaged or not supported", what));
}

// Of one request alone: its grammar has no text that goes on from here, or what else it demands leaves none.
TokenEvent::Ended dead_end() {
  return failed_by(
      request_error("no token is possible: what the request's constraint allows here is ruled out by its grammar, "
                    "allowed_token_ids, bad_words or logit_bias, or takes too long to find"));
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

int32_t Committer::commit(const SequenceRows& rows, const StepResults& results) {
  Sequence& s = *rows.sequence;
  if (rows.hidden_count > 0) collect_hidden(rows, results.hidden);
  if (rows.scored_count > 0) collect_logprobs(rows, results.scored);
  if (rows.logit_row >= 0) return commit_tokens(rows, results);
  if (s.request.max_tokens == 0 && rows.prompt_end == s.prompt_tokens()) commit_prompt(s);
  return 0;
}

void Committer::commit_held(Sequence& s) {
  std::optional<SequenceMasks::Committed> made = SequenceMasks::take(s);
  if (!made) return;
  if (made->accepted)
    tell(s, std::move(made->token));
  else
    finish(s, dead_end());
}

void Committer::finish(Sequence& s, TokenEvent::Ended ended) {
  ended.admitted = s.admitted;
  ended.drafts = s.drafts.drafted;
  ended.drafts_accepted = s.drafts.accepted;
  end(s);
  delivery_.push(s.stream, std::move(ended));
}

void Committer::end(Sequence& s) {
  if (!s.finished()) waiting_.end(s.request.client);
  s.stage = Sequence::Stage::kFinished;
}

int32_t Committer::commit_tokens(const SequenceRows& rows, const StepResults& results) {
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
  if (rows.drafts > 0) counters_.count_drafts(rows.drafts, accepted);
  return accepted;
}

void Committer::commit_token(Sequence& s, Sampled sampled, bool alone) {
  if (s.results.damaged || (sampled.token < 0 && s.constraint == nullptr)) return finish(s, damaged("logits"));
  if (sampled.token < 0) return finish(s, dead_end());
  // A grammar whose masks are slow takes its time for tokens, too. A step that samples the next one waits for neither.
  const bool by_pool = alone && s.pending == 0 && s.constraint != nullptr && !s.constraint->quick();
  if (s.constraint != nullptr && !by_pool && !s.constraint->commit(sampled.token)) return finish(s, dead_end());
  s.output.push_back(sampled.token);
  tell_begun(s);
  TokenEvent::Token token{.id = sampled.token, .logprob = sampled.logprob, .top = std::move(sampled.top)};
  token.ends = reason_to_end(s, token.id);
  if (!by_pool) return tell(s, std::move(token));
  masks_.commit_slowly(s, std::move(token));
}

FinishReason Committer::reason_to_end(const Sequence& s, TokenId token) const {
  const std::vector<TokenId>& stops = s.request.stop_tokens;
  if (std::find(stops.begin(), stops.end(), token) != stops.end()) return FinishReason::kStop;
  if (!s.request.ignore_eos && model_.tokenizer && model_.tokenizer->is_eog(token)) return FinishReason::kStop;
  return s.outputs() >= s.request.max_tokens ? FinishReason::kLength : FinishReason::kNone;
}

void Committer::commit_prompt(Sequence& s) {
  if (s.results.damaged) return finish(s, damaged("logits"));
  TokenEvent::Embedding embedding;
  if (s.request.embed) {
    embedding.values = s.results.pooled.normalised();
    if (embedding.values.empty()) return finish(s, damaged("hidden states"));
  }
  tell_begun(s);
  if (!s.request.embed) return finish(s, {.finish = FinishReason::kLength});
  delivery_.push(s.stream, std::move(embedding));
  finish(s, {.finish = FinishReason::kStop});
}

void Committer::tell_begun(Sequence& s) {
  if (std::exchange(s.begun, true)) return;
  delivery_.push(s.stream, TokenEvent::Begun{.cached_tokens = s.prefix.cached,
                                             .prefix_miss = s.prefix.miss.reason,
                                             .diverged_at = s.prefix.miss.diverged_at,
                                             .admitted = s.admitted,
                                             .prompt = std::exchange(s.results.logprobs, nullptr)});
}

void Committer::tell(Sequence& s, TokenEvent::Token token) {
  if (s.constraint != nullptr && s.constraint->ended()) token.ends = FinishReason::kStop;
  const FinishReason ends = token.ends;
  delivery_.push(s.stream, std::move(token));
  if (ends != FinishReason::kNone) finish(s, {.finish = ends});
}

}  // namespace quire
