#include "engine/speculator.h"

#include <algorithm>

namespace quire {

Speculator::Speculator(const EnginePlan& plan, const LoadedModel& model) : plan_(plan), model_(model) {
  if (const auto& by_depth = plan_.speculative.simulated; !by_depth.empty()) chance_.emplace(by_depth);
  offers_.reserve(static_cast<size_t>(plan_.max_sequences));
}

void Speculator::begin(Sequence& s) const {
  s.drafts.of_mtp = typical_mtp_.for_one();
  s.drafts.of_others = typical_others_.for_one();
}

void Speculator::committed(Sequence& s, int32_t drafts, int32_t accepted) {
  s.drafts.acceptance().observe(drafts, accepted);
  (s.drafts.by_mtp ? typical_mtp_ : typical_others_).observe(drafts, accepted);
  look_up(s);
}

int32_t Speculator::most_drafts(const Sequence& s, bool soon) const {
  const int64_t known = soon ? s.committed() + s.pending : s.committed();
  if (s.finished() || !s.request.speculative || known <= s.prompt_tokens() || s.mask_job != nullptr) return 0;
  if (s.awaits_completion()) return 0;
  // Drafts follow a token that is known.
  if (!soon && (s.in_flight > 0 || s.planned != known - 1)) return 0;
  const int64_t left = s.prompt_tokens() + s.request.max_tokens - known - 1;
  return static_cast<int32_t>(std::clamp<int64_t>(left, 0, plan_.most_drafts()));
}

bool Speculator::has_mtp(const Sequence& s, bool soon) const {
  return plan_.mtp && (soon || (s.planned > s.drafts.kept_first && s.planned <= s.drafts.kept_end));
}

DraftOffer Speculator::offer_of(Sequence& s, bool soon) const {
  SequenceDrafts& d = s.drafts;
  const int32_t most = most_drafts(s, soon), found = std::min(most, static_cast<int32_t>(d.found.size()));
  if (!has_mtp(s, soon) || d.of_others.expected_tokens(found) >= d.of_mtp.expected_tokens(most))
    return {.most = found, .acceptance = &d.of_others};
  return {.most = most, .acceptance = &d.of_mtp};
}

bool Speculator::wants_drafts(const RunningSet& running) {
  const SpeculativeOptions& o = plan_.speculative;
  if (!o.enabled() || !o.adaptive) return o.enabled();
  offers_.clear();
  for (const auto& s : running.all())
    if (!s->finished() && s->committed() + s->pending > s->prompt_tokens()) offers_.push_back(offer_of(*s, true));
  return draft_plan_.wants_drafts(offers_, plan_.sampled_rows() - running.size());
}

void Speculator::offer(const RunningSet& running) {
  if (!plan_.speculative.enabled()) return;
  offers_.clear();
  for (const auto& s : running.all()) {
    offer_to(*s);
    if (!s->finished() && s->committed() > s->prompt_tokens())
      offers_.push_back({.most = s->drafts.count, .acceptance = &s->drafts.acceptance()});
  }
  if (!plan_.speculative.adaptive || offers_.empty()) return;
  const int32_t each = draft_plan_.choose(offers_, plan_.sampled_rows() - running.size());
  for (const auto& s : running.all()) s->drafts.count = std::min(s->drafts.count, each);
}

void Speculator::offer_to(Sequence& s) const {
  SequenceDrafts& d = s.drafts;
  d.count = 0;
  if (s.in_flight > 0) return;  // tokens and by_mtp are still those of that step
  const int32_t most = most_drafts(s, false);
  if (most == 0) return;
  d.tokens.clear();
  if (plan_.speculative.hook) plan_.speculative.hook(s.request.prompt, s.output, most, d.tokens);
  const DraftOffer offer = offer_of(s, false);
  d.by_mtp = d.tokens.empty() && offer.acceptance == &d.of_mtp;
  if (d.tokens.empty() && !d.by_mtp) d.tokens.assign(d.found.begin(), d.found.begin() + offer.most);
  if (std::ssize(d.tokens) > most) d.tokens.resize(static_cast<size_t>(most));
  if (s.constraint != nullptr) d.tokens.resize(static_cast<size_t>(s.constraint->cut(d.tokens)));
  d.count = d.by_mtp ? most : static_cast<int32_t>(d.tokens.size());
}

// What a grammar leaves no choice about.
std::vector<TokenId> Speculator::forced_tokens(const Sequence& s) const {
  if (!s.constraint->quick()) return {};
  const std::string text = s.constraint->forced();
  if (text.empty()) return {};
  std::vector<TokenId> tokens =
      model_.tokenizer->encode(text, {.add_special = false, .parse_special = false, .continues = true});
  tokens.resize(std::min(tokens.size(), static_cast<size_t>(plan_.most_drafts())));
  return tokens;
}

void Speculator::look_up(Sequence& s) const {
  SequenceDrafts& d = s.drafts;
  d.found.clear();
  if (!plan_.speculative.enabled() || s.finished() || most_drafts(s, true) == 0) return;
  if (s.constraint != nullptr && model_.tokenizer) d.found = forced_tokens(s);
  if (!d.found.empty() || !plan_.speculative.looks_up()) return;
  // A long prompt is taken in over many steps: none of them waits for it.
  constexpr int64_t kAtOnce = 4096;
  if (const int64_t left = s.prompt_tokens() - d.lookup.size(); left > 0) {
    const std::span<const TokenId> prompt = s.request.prompt;
    d.lookup.append(prompt.subspan(static_cast<size_t>(d.lookup.size()), static_cast<size_t>(std::min(left, kAtOnce))));
    if (left > kAtOnce) return;
  }
  d.lookup.append(std::span(s.output).subspan(static_cast<size_t>(d.lookup.size() - s.prompt_tokens())));
  d.found.resize(static_cast<size_t>(plan_.most_drafts()));
  d.found.resize(static_cast<size_t>(d.lookup.propose(d.found).count));
}

// What a step took is the time since the one before it ended: of steps that overlap that is what each adds.
void Speculator::retired(const StepInFlight& step) {
  const auto now = Clock::now();
  const auto sequences = std::ssize(step.rows);
  if (last_step_ && sequences > 0 && step.record.prompt_rows == 0)
    draft_plan_.observe(static_cast<int32_t>(sequences), drafts_of_each(step.record.drafts, sequences),
                        std::chrono::duration<double>(now - *last_step_).count());
  last_step_ = now;
}

}  // namespace quire
