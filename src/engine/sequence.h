// A request in progress, as the engine's own thread sees it. Internal to the engine.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>

#include "cache/block_table.h"
#include "cache/prefix_cache.h"
#include "cache/shape.h"
#include "engine/checkpoints.h"
#include "engine/delivery.h"
#include "engine/draft_plan.h"
#include "engine/lookup_drafter.h"
#include "engine/mask_pool.h"
#include "engine/pooling.h"
#include "engine/request.h"

namespace quire {

// What a running sequence holds of the caches. A waiting one holds nothing.
struct SequenceMemory {
  int32_t slot = -1;     // its batch slot: index into the device's arrays of last tokens and of histories
  StateSlot state_slot;  // its recurrent state, where the model has recurrent layers
  int32_t anchor = 0;    // Segment::anchor of its next step
  // Of each pool of blocks: those that it has on the device, and how many it may come to hold; of windows, but for the
  // rows of steps in flight.
  std::vector<BlockTable> tables;
  PoolCounts most;
  // Pages of the host that its last blocks of kKvPool were swapped out to, the very last block first.
  std::vector<int32_t> swapped;

  const BlockTable& kv() const { return tables[kKvPool]; }
  BlockTable& kv() { return tables[kKvPool]; }
  int32_t blocks_held() const { return static_cast<int32_t>(kv().blocks().size() + swapped.size()); }
  bool swapped_out() const { return !swapped.empty(); }
};

// How the sequence uses the prefix cache, and what it adds to it. All positions are token counts of the prompt.
struct PrefixUse {
  bool reads = true;  // false: all rows of its prompt are needed, so nothing is taken from the cache
  PrefixHashes hashes;
  PrefixCache::Match match;  // while it waits: what the cache has of its prompt
  Checkpoints checkpoints;   // where its recurrent state is to be saved, and what windows look back on is to be kept
  PrefixCache::Miss miss;    // why no more was found when it was admitted
  int64_t cached = 0;        // found in the cache when it was admitted
  int64_t computed = 0;      // computed by steps that have ended
  int64_t published = 0;     // findable by others
  int64_t unsaved = 0;       // not 0: its state slot holds the state to be saved before its next chunk
  int64_t saving = 0;        // not 0: a step in flight saves the state after so many tokens
};

// Drafts of its next tokens.
struct SequenceDrafts {
  int32_t count = 0;            // of the step that is planned, or in flight
  bool by_mtp = false;          // the multi-token-prediction block makes them, in that step
  std::vector<TokenId> tokens;  // else: these
  LookupDrafter lookup;         // over what is committed, and what it finds to follow
  std::vector<TokenId> found;

  AcceptanceAverages of_mtp, of_others;

  AcceptanceAverages& acceptance() { return by_mtp ? of_mtp : of_others; }
  int64_t drafted = 0, accepted = 0;  // so far: drafts that were verified, and those that were right

  // Hidden states of its last rows that the device keeps: positions [kept_first, kept_end). The block drafts where that
  // of the last position that is computed is among them.
  int64_t kept_first = 0, kept_end = 0;
};

// What is collected of a prompt while its chunks are computed.
struct PromptResults {
  PooledRows pooled;                         // of an embedding
  std::shared_ptr<PromptLogprobs> logprobs;  // null: nobody asked for them, or they are delivered
  bool damaged = false;                      // some of them are not numbers
};

// The life of a sequence:
//   waiting   from Engine::submit on. It has its prompt, and nothing of the caches.
//   running   from Engine::admit_planned on, when a plan says so. It has a batch slot, a state slot and blocks. Steps
//             compute its prompt in chunks and then one token after the other. `planned` runs ahead of what is
//             committed by the steps in flight: a step may be planned before the token that it goes on from is known.
//   finished  its end is told, and nothing more of it is planned. Steps in flight may still compute rows of it.
//   gone      no step in flight has rows of it: what it holds returns, and it is destroyed.
struct Sequence {
  enum class Stage { kWaiting, kRunning, kFinished };

  RequestId id;
  Request request;
  std::vector<Hash128> pictures;  // of Request::images: what names each to the encoder's cache
  std::shared_ptr<Delivery::Stream> stream;
  std::vector<TokenId> ending;  // with min_tokens: the tokens that would end it, distinct
  Stage stage = Stage::kWaiting;

  std::vector<TokenId> output;   // generated tokens that are committed
  int64_t planned = 0;           // positions that steps in flight or past have computed
  int32_t pending = 0;           // tokens that steps in flight sample
  int32_t in_flight = 0;         // steps in flight that have rows of it
  int64_t last_step = 0;         // the newest one that has rows of it, as steps are counted
  int32_t skipped_steps = 0;     // steps in a row that left out its next token for prompts
  bool history_begun = false;    // with penalties: its history on the device is that of this request
  std::vector<TokenId> unnoted;  // with penalties: tokens of the output that this history lacks
  bool begun = false;            // its listener was told so
  bool failed = false;           // a step with rows of it failed: what it computes is nothing for others
  std::optional<std::chrono::steady_clock::time_point> admitted;

  SequenceMemory memory;
  PrefixUse prefix;
  PromptResults results;
  SequenceDrafts drafts;
  // Null: there is none. While mask_job is not done, the pool's.
  std::shared_ptr<ConstrainedOutput> constraint;
  std::shared_ptr<MaskJob> mask_job;  // of the next token; null: its mask is computed beside the step that samples it
  std::optional<TokenEvent::Token> held;  // the last token, until the pool has said whether it is accepted

  bool finished() const { return stage == Stage::kFinished; }
  int64_t prompt_tokens() const { return static_cast<int64_t>(request.prompt.size()); }
  PrefixCache::Prompt prompt() const { return {request.prompt, prefix.hashes}; }
  int64_t outputs() const { return static_cast<int64_t>(output.size()); }
  // Of the prompt and the output, one after the other: how many there are, and the one at `position`.
  int64_t committed() const { return prompt_tokens() + outputs(); }
  TokenId token(int64_t position) const {
    const int64_t generated = position - prompt_tokens();
    return generated < 0 ? request.prompt[static_cast<size_t>(position)] : output[static_cast<size_t>(generated)];
  }
  // What the token behind so many positions must not be. A text that is complete as its grammar says may end.
  std::span<const TokenId> forbidden(int64_t position) const {
    const bool may_end = position - prompt_tokens() >= request.min_tokens || (constraint && constraint->complete());
    return may_end ? std::span<const TokenId>() : std::span(ending);
  }
  // Whether it is the grammar's text that decides if the next token may end it: the tokens before must be known by
  // then.
  bool awaits_completion() const {
    return constraint != nullptr && constraint->depends() && outputs() + pending < request.min_tokens;
  }
  // Positions that there are to compute: all but that of the last token that may be generated, which nothing follows.
  int64_t to_compute() const {
    if (request.max_tokens == 0) return prompt_tokens();
    return std::min(committed() + pending, prompt_tokens() + request.max_tokens - 1);
  }
};

}  // namespace quire
