// What steps and caches of a model take, in bytes.
#pragma once

#include "engine/plan.h"

namespace quire {

// Blocks that hold so many tokens, of which there are none or more.
constexpr int64_t blocks_of(int64_t tokens) {
  return (tokens + kBlockTokens - 1) / kBlockTokens;
}

// Of all units that a running sequence has for itself.
inline int64_t sequence_bytes(const CachePools& pools) {
  int64_t sum = 0;
  for (const CachePoolSpec& pool : pools) sum += pool.unit == CachePoolSpec::Unit::kSequence ? pool.bytes : 0;
  return sum;
}

// Bytes that steps and caches take, each for one of its kind. What steps take is an estimate: a backend measures it
// when it is made.
struct StepCost {
  int64_t fixed = 0;     // whatever a step holds: graphs, partial sums of products
  int64_t row = 0;       // of each token of a step
  int64_t sampled = 0;   // of each row that is sampled
  int64_t sequence = 0;  // of each place for a sequence: the history of penalties, on a GPU its windows
  int64_t table = 0;     // of each place and each block of the longest sequence: its entry of a block table
  int64_t block = 0;     // of each block of the KV pool, beside its keys and values
  int64_t part = 0;      // of a partial result of attention (EngineOptions::decode_parts)
  CachePools pools;      // exact: of the caches
  int64_t drafts = 0;    // exact: of a recurrent state, what drafts need

  int64_t kv_block() const { return pools[kKvPool].bytes; }
  // A recurrent state, which may also be saved; and all that a place for a sequence has to itself, that state among it.
  int64_t state() const { return state_bytes(pools); }
  int64_t place() const { return sequence_bytes(pools); }
  // Of steps of so many rows, sequences and parts: all but the caches.
  int64_t steps(const EnginePlan& plan) const;
};
// An error if the sizes that a file gives are no numbers of bytes.
Result<StepCost> step_cost(const EnginePlan& plan, const ModelConfig& model);

}  // namespace quire
