// What the engine has drafted for the next step: tokens that are verified beside a generated one.
#include <algorithm>

#include "engine/engine.h"

namespace quire {

bool Engine::speculates() const {
  return options_.speculative.enabled();
}

void Engine::offer_drafts() {
  for (const auto& s : running_.all()) {
    s->drafts.count = 0;
    if (speculates()) offer_drafts(*s);
  }
}

void Engine::offer_drafts(Sequence& s) const {
  SequenceDrafts& d = s.drafts;
  // Drafts follow a token that is known. Penalties of a row would have to count the drafts before it.
  if (s.finished() || s.in_flight > 0 || s.planned != s.committed() - 1 || s.planned < s.prompt_tokens() ||
      s.request.sampling.has_penalties() || !s.request.speculative)
    return;
  const int64_t left = s.request.max_tokens - s.outputs() - 1;
  const auto most = static_cast<int32_t>(std::clamp<int64_t>(left, 0, options_.most_drafts()));
  if (most == 0) return;
  d.tokens.clear();
  d.by_mtp = false;
  if (options_.speculative.hook) {
    options_.speculative.hook(s.request.prompt, s.output, most, d.tokens);
    if (std::ssize(d.tokens) > most) d.tokens.resize(static_cast<size_t>(most));
  }
  d.count = static_cast<int32_t>(d.tokens.size());
  if (d.count > 0 || !options_.mtp || s.planned <= d.kept_first || s.planned > d.kept_end) return;
  d.by_mtp = true;
  d.count = most;
}

}  // namespace quire
