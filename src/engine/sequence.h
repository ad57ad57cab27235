// A request in progress, as the engine's own thread sees it. Internal to the engine.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>

#include "cache/block_table.h"
#include "cache/prefix_cache.h"
#include "engine/checkpoints.h"
#include "engine/delivery.h"
#include "engine/pooling.h"
#include "engine/request.h"

namespace quire {

// What is planned runs ahead of what is committed by the steps under way: a step may be planned before the token that the
// one before it samples is known.
struct Sequence {
  RequestId id;
  Request request;
  std::shared_ptr<Delivery::Stream> stream;
  std::vector<TokenId> ending;  // with min_tokens: the tokens that would end it, distinct
  std::vector<TokenId> output;  // what is committed of it
  int64_t planned = 0;          // positions that steps under way or past have computed
  int32_t pending = 0;          // tokens that steps under way sample
  int32_t in_flight = 0;        // steps under way that mention it
  int32_t max_blocks = 0;       // KV blocks it may come to need
  int32_t place = -1;           // among those that run
  int32_t anchor = 0;           // Segment::anchor of its next step
  bool noted = false;           // penalties: its history has been begun
  bool spoiled = false;         // a step of its own failed: what it computes is nothing for others
  bool finished =
      false;  // nothing more of it is planned; its memory returns with the last step that mentions it
  BlockTable table;
  std::vector<int32_t>
      host;  // blocks of the host that its last ones were swapped out to, the very last one first
  StateSlot slot;

  PooledRows pooled;  // of an embedding, as far as it is computed
  // Log-probabilities of the prompt, likewise; null: nobody asked for them, or they are delivered.
  std::shared_ptr<PromptLogprobs> scored;
  bool damaged = false;  // some of them are not numbers

  // Prefixes.
  bool whole = false;  // it needs all of its prompt's rows, and takes nothing that the cache has
  PrefixHashes hashes;
  PrefixCache::Match match;  // while it waits: what the cache has of it
  Checkpoints checkpoints;
  PrefixCache::Miss miss;  // why it did not find more
  int64_t cached = 0;      // tokens that it found
  int64_t computed = 0;    // of the prompt, that steps past have computed
  int64_t published = 0;   // of them, that others can find
  int64_t unsaved =
      0;  // not 0: its slot holds the state after so many tokens, to be saved before its next chunk
  int64_t saving = 0;  // not 0: a step under way saves the state after so many tokens
  std::optional<std::chrono::steady_clock::time_point> admitted;
  int32_t passed = 0;  // steps in a row that left out its next token for prompts

  int64_t prompt_tokens() const { return static_cast<int64_t>(request.prompt.size()); }
  PrefixCache::Prompt prompt() const { return {request.prompt, hashes}; }
  int32_t blocks_held() const { return static_cast<int32_t>(table.blocks().size() + host.size()); }
  bool swapped_out() const { return !host.empty(); }
  int64_t outputs() const { return static_cast<int64_t>(output.size()); }
  // Of the prompt and the output, one after the other: how many there are, and the one at `position`.
  int64_t committed() const { return prompt_tokens() + outputs(); }
  TokenId token(int64_t position) const {
    const int64_t generated = position - prompt_tokens();
    return generated < 0 ? request.prompt[static_cast<size_t>(position)]
                         : output[static_cast<size_t>(generated)];
  }
  // What the token behind so many positions must not be.
  std::span<const TokenId> forbidden(int64_t position) const {
    return position - prompt_tokens() < request.min_tokens ? std::span(ending) : std::span<const TokenId>();
  }
  // Tokens that there are to compute: all but the last that may be generated, which nothing follows.
  int64_t to_compute() const {
    if (request.max_tokens == 0) return prompt_tokens();
    return std::min(committed() + pending, prompt_tokens() + request.max_tokens - 1);
  }
};

}  // namespace quire
