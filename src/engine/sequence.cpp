#include "engine/sequence.h"

#include <algorithm>

namespace quire {

Engine::Sequence::Sequence(Request r, Listener l, const LoadedModel& model, StopMatcher stop)
    : request(std::move(r)), listener(std::move(l)), tokens(request.prompt), stop_(std::move(stop)) {
  if (!model.tokenizer) return;
  tokenizer_ = &*model.tokenizer;
  detokenizer_.emplace(*tokenizer_, request.render_special);
}

SampleRow Engine::Sequence::sample_row() const {
  SampleRow row;
  row.params = &request.sampling;
  row.position = static_cast<int64_t>(tokens.size());
  row.prompt = request.prompt;
  row.output = output();
  if (tokenizer_ != nullptr) row.suppressed = tokenizer_->suppress_tokens();
  return row;
}

bool Engine::Sequence::ends_generation(TokenId t) const {
  if (std::find(request.stop_tokens.begin(), request.stop_tokens.end(), t) != request.stop_tokens.end())
    return true;
  return !request.ignore_eos && tokenizer_ != nullptr && tokenizer_->is_eog(t);
}

TokenEvent Engine::Sequence::accept(const Sampled& sampled) {
  tokens.push_back(sampled.token);
  TokenEvent e;
  e.request = id;
  e.token = sampled.token;
  e.logprob = sampled.logprob;
  e.top = sampled.top;
  const bool ended = ends_generation(sampled.token);
  if (detokenizer_) {
    if (!ended) {
      StopMatcher::Output out = stop_.push(detokenizer_->push(sampled.token));
      e.text = std::move(out.text);
    }
    if (stop_.stopped()) {
      e.finish = FinishReason::kStop;
      return e;
    }
  }
  if (ended) {
    e.finish = FinishReason::kStop;
  } else if (static_cast<int64_t>(output().size()) >= request.max_tokens) {
    e.finish = FinishReason::kLength;
  }
  if (e.finish != FinishReason::kNone && detokenizer_) {
    // An incomplete character becomes U+FFFD; a stop text may still be completed by it.
    e.text += stop_.push(detokenizer_->flush()).text;
    e.text += stop_.flush();
  }
  return e;
}

}  // namespace quire
