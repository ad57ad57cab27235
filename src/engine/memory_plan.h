// How an engine's memory is shared out: what options leave open follows from the memory that there is, from the model's
// shapes, and from what is in use already. Numbers alone, so that any card and any machine is tested without one.
#pragma once

#include "engine/plan.h"
#include "engine/step_cost.h"

namespace quire {

// What is chosen where memory allows, and in what the rule differs between kinds of devices: one row for each.
struct PlanDefaults {
  int32_t sequences = 0;                           // running at once
  int32_t batch_tokens = 0, few_batch_tokens = 0;  // rows of a step, and where memory is short
  // Of the KV pool, at most, and how often all sequences' contexts, where there is a prefix cache. Larger pools than a
  // GPU's would cost the host more to keep the books of than they are worth.
  int64_t pool_tokens = 0, prefix_contexts = 0;
  // Whether everything is allocated at the start. Then what steps take is measured, all becomes smaller until that
  // fits, what cannot fit is refused, and the KV pool is a bound until the rest is known. Else caches are addresses
  // that memory is found for as they are touched: the estimate suffices, an option that asks for more is taken as it
  // is, and only the number of sequences is lowered, for others can wait.
  bool measured = false;
  // The context takes this part of what is left (1 is all of it) beside so many sequences, if nobody says how many. A
  // GPU's sequences are many, and each has memory of its own; those of a CPU are few and share the pool.
  int64_t part_of_context = 1;
  int32_t beside_context = 0;
  // Of the KV pool for each sequence, at least: on a CPU more sequences than that take turns at no cost.
  int64_t tokens_of_place = 0;
  // What drafts take of recurrent states is no more than this part of the KV pool: fewer sequences are. A CPU's pool
  // would gain nothing, because pool_tokens is soon reached.
  int64_t part_of_drafts = 1;
  // Sequences whose windows are counted beside those in StepCost::sequence, which has a GPU's.
  int32_t windows = 0;

  constexpr static PlanDefaults of(Device device) {
    if (device == Device::kCuda)
      return {.sequences = 256,
              .batch_tokens = 2048,
              .few_batch_tokens = 512,
              .pool_tokens = int64_t{1} << 26,
              .prefix_contexts = 4,
              .measured = true,
              .part_of_context = 2,
              .beside_context = 0,
              .tokens_of_place = 512,
              .part_of_drafts = 20,
              .windows = 0};
    return {.sequences = kDefaultSequences,
            .batch_tokens = kDefaultBatchTokens,
            .few_batch_tokens = kChunkTokens,
            .pool_tokens = int64_t{1} << 16,
            .prefix_contexts = 1,
            .measured = false,
            .part_of_context = 1,
            .beside_context = kDefaultSequences,
            .tokens_of_place = 0,
            .part_of_drafts = 1,
            .windows = kDefaultSequences};
  }
};
// Contexts that memory limits are no shorter by default, if the model was trained for as much: with less room than that
// everything else is made small first.
inline constexpr int64_t kLeastContext = 4096;

// Chooses context, max_sequences, max_batch_tokens, decode_parts, kv_tokens and state_checkpoints where the options
// that `plan` begins with leave them open, within what memory has. Context and KV pool are kept if they are given;
// sequences become fewer where they do not fit, and so do rows of a step where that is measured. One decision after the
// other, each within what those before it leave, by the numbers of PlanDefaults:
// - Rows of a step: as many as by default, or fewer while those take more than an eighth.
// - The context: as trained, or the longest whose keys and values fit the part that is for them.
// - Sequences: as many as by default, or as take half of the rest with all that is kept for each, and beside which the
//   pool has one context, and enough for each.
// - Partial results of attention, where they take memory. Then, if what is measured (EngineMemory::step_bytes) does not
//   fit, all of these become smaller until it does.
// - The KV pool: as much as sequences and prefix cache can use. Where that is no bound (EnginePlan::kv_is_bound), it is
//   what is left, but for a quarter if saved states can use that.
// - Saved states of the prefix cache: four for each sequence, as far as there is room.
// What the host's memory is asked for besides comes before all of it on a CPU: an eighth at most for sequences that are
// swapped out, a quarter for what leaves the prefix cache.
// Fault::kCapacity, with numbers, for what cannot fit.
Result<EnginePlan> plan_memory(EnginePlan plan, const ModelConfig& model, const EngineMemory& memory);

// Who has how many bytes by a plan: `kv` is what a GPU's pool has at most, whose windows are not told apart.
struct MemoryShares {
  int64_t steps = 0, states = 0, saved_states = 0, kv = 0;
  int64_t kv_tokens = 0;
};
Result<MemoryShares> memory_shares(const EnginePlan& plan, const ModelConfig& model, const EngineMemory& memory);

}  // namespace quire
