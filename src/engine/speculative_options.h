// Speculation: drafts of the next tokens that a step verifies beside a generated one. It never changes a text, only how
// many steps it takes (docs/speculation.md).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/id.h"
#include "ops/segments.h"

namespace quire {

// The multi-token-prediction block drafts one of so many tokens at most: the first ones of the vocabulary, which
// byte-level BPE learns in the order of how common they are. A whole head would take longer than the block.
inline constexpr int64_t kDraftedTokens = 65536;

enum class Speculative {
  kAuto,    // with whatever there is to draft with, where it pays
  kOff,     // nobody drafts
  kMtp,     // with the model's block for multi-token prediction alone
  kLookup,  // with what followed the same tokens in prompt or output alone
};

// Drafts for tests and experiments: is shown the prompt and the output so far, and appends up to `most` drafts of what
// follows. On the thread that steps the engine.
using DraftHook = std::function<void(std::span<const TokenId> prompt, std::span<const TokenId> output, int32_t most,
                                     std::vector<TokenId>& drafts)>;

struct SpeculativeOptions {
  Speculative mode = Speculative::kOff;
  int32_t tokens = kMostDrafts;  // drafts of a sequence in a step at most, 1 to kMostDrafts
  bool adaptive = true;          // fewer or none where more do not pay; else always as many as there are
  DraftHook hook;                // not empty: whose drafts go first
  // Not empty: chance decides which drafts are right, by depth, and texts mean nothing. To measure with random weights.
  std::vector<float> simulated;

  bool enabled() const { return mode != Speculative::kOff || hook; }
  bool looks_up() const { return mode == Speculative::kAuto || mode == Speculative::kLookup; }
  bool wants_mtp() const { return mode == Speculative::kAuto || mode == Speculative::kMtp; }
};

}  // namespace quire
