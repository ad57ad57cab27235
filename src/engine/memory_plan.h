// How an engine's memory is shared out: what options leave open follows from the memory that there is, from the model's
// shapes, and from what is in use already. Numbers alone, so that any card and any machine is tested without one.
#pragma once

#include "engine/plan.h"

namespace quire {

// Blocks that hold so many tokens, of which there are none or more.
constexpr int64_t blocks_of(int64_t tokens) {
  return (tokens + kBlockTokens - 1) / kBlockTokens;
}

// What is chosen where memory allows.
struct PlanDefaults {
  int32_t sequences = 0;                           // running at once
  int32_t batch_tokens = 0, few_batch_tokens = 0;  // rows of a step, and where memory is short
  int64_t pool_tokens = 0;                         // of the KV pool at most
  constexpr static PlanDefaults of(Device device) {
    // Larger pools than a GPU's would cost the host more to keep the books of than they are worth.
    if (device == Device::kCuda) return {256, 2048, 512, int64_t{1} << 26};
    return {16, 512, kChunkTokens, int64_t{1} << 16};
  }
};
// Contexts that memory limits are no shorter by default, if the model was trained for as much: with less room than that
// everything else is made small first.
inline constexpr int64_t kLeastContext = 4096;

// Bytes that steps and caches take, each for one of its kind. What steps take is an estimate: a backend measures it
// when it is made.
struct StepCost {
  int64_t fixed = 0;     // whatever a step holds: graphs, partial sums of products
  int64_t row = 0;       // of each token of a step
  int64_t sampled = 0;   // of each row that is sampled
  int64_t sequence = 0;  // of each place for a sequence: the history of penalties, blocks of windows
  int64_t position = 0;  // of each place and each token of the longest sequence: block tables
  int64_t part = 0;      // of a partial result of attention (EngineOptions::decode_parts)
  CachePools pools;      // exact: of the caches
  int64_t drafts = 0;    // exact: of a recurrent state, what drafts need

  int64_t kv_block() const { return pools[kKvPool].bytes; }
  int64_t state() const { return state_bytes(pools); }
  // Of steps of so many rows, sequences and parts: all but the caches.
  int64_t steps(const EnginePlan& plan) const;
};
// An error if the sizes that a file gives are no numbers of bytes.
Result<StepCost> step_cost(const EnginePlan& plan, const ModelConfig& model);

// Chooses context, max_sequences, max_batch_tokens, decode_parts, kv_tokens and state_checkpoints where the options
// that `plan` begins with leave them open, within what memory has. Context and KV pool are kept if they are given;
// sequences and rows of a step become fewer where they do not fit.
// - A GPU: steps of 2048 tokens, of fewer (512) while those take more than an eighth of what weights leave. The trained
//   context, or the longest whose keys and values take half of the rest. 256 sequences, or as many as take half of the
//   rest with all that is kept for each, and beside which the pool has 512 tokens for each. The pool is what is left
//   when all else has been allocated, as far as sequences and prefix cache can use it (EnginePlan::kv_is_bound).
//   If what is measured (EngineMemory::step_bytes) does not fit, all of these become smaller until it does.
// - A CPU: steps of 512 tokens, of fewer likewise; 16 sequences, or as many whose states take half of the rest; the
//   trained context, or what the rest holds; a pool of that, or of 64k tokens if there are several sequences.
//   An eighth at most is for sequences that are swapped out, a quarter for what leaves the prefix cache.
// - Saved states of the prefix cache: four for each sequence, in a quarter of what is left at most.
// Fault::kCapacity, with numbers, for what cannot fit.
Result<EnginePlan> plan_memory(EnginePlan plan, const ModelConfig& model, const EngineMemory& memory);

// Who has how many bytes by a plan: `kv` is what a GPU's pool has at most, whose windows are not told apart.
struct MemoryShares {
  int64_t steps = 0, states = 0, saved_states = 0, kv = 0;
  int64_t kv_tokens = 0;
};
Result<MemoryShares> memory_shares(const EnginePlan& plan, const ModelConfig& model, const EngineMemory& memory);

// How many units each pool of a GPU's caches has in so many bytes: states first, a quarter at most for those of the
// prefix cache; then blocks of windows (window_pool); what is left are the other blocks. Several pools of windows share
// as their sequences need.
struct UnitsWithin {
  PoolCounts counts;
  bool fits = false;  // else at least so many tokens, in blocks of so many bytes, have to be beside the states
  int64_t least_tokens = 0, least_bytes = 0;
};
UnitsWithin units_within(const EnginePlan& plan, const CachePools& pools, int64_t bytes);

// How many blocks of so many bytes a pool of windows has, its filler not among them. First what `sequences` running
// ones need, in half of `left` bytes at most, or what a single one needs if that is more: then fewer run at once, where
// all are long. Then for `places` of the prefix cache, in a quarter of `left` at most. `others` bytes stay for the KV
// blocks of the other layers. 0: not even one sequence fits, or needs any.
int32_t window_pool(const WindowNeeds& needs, int64_t sequences, int64_t places, int64_t left, int64_t block_bytes,
                    int64_t others);

// Of the states that the prefix cache would like, as many as take a quarter of `left` bytes at most and leave room
// for one sequence's keys and values.
int32_t saved_states(int64_t wanted, int64_t left, int64_t state_bytes, int64_t context_bytes);

}  // namespace quire
