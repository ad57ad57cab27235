// A request in progress. Internal to the engine.
#pragma once

#include <optional>

#include "engine/engine.h"
#include "tokenizer/detokenizer.h"
#include "tokenizer/stop_matcher.h"

namespace quire {

struct Engine::Sequence {
  Sequence(Request r, Listener l, const LoadedModel& model, StopMatcher stop);

  int64_t prompt_tokens() const { return static_cast<int64_t>(request.prompt.size()); }
  std::span<const TokenId> output() const { return std::span(tokens).subspan(request.prompt.size()); }
  SampleRow sample_row() const;
  // Appends a sampled token and says what the listener should hear; `finish` is set if the request ends with
  // it.
  TokenEvent accept(const Sampled& sampled);

  Request request;
  Listener listener;
  RequestId id;
  std::vector<TokenId> tokens;  // prompt, then output
  int64_t computed = 0;         // positions in the caches
  int32_t max_blocks = 0;
  BlockTable table;
  StateSlot slot;
  bool finished = false;

 private:
  bool ends_generation(TokenId t) const;

  const Tokenizer* tokenizer_ = nullptr;
  std::optional<StreamDetokenizer> detokenizer_;
  StopMatcher stop_;
};

}  // namespace quire
