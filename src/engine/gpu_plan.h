// How a GPU's memory is shared out: what options leave open follows from the card, the model's shapes and what is in
// use. Numbers alone, so that it is tested without a GPU.
#pragma once

#include "engine/options.h"

namespace quire {

// What is chosen where memory allows.
inline constexpr int32_t kGpuSequences = 256;
inline constexpr int32_t kGpuBatchTokens = 2048, kFewGpuBatchTokens = 512;

// Bytes that steps take on a GPU. Scratch memory is an estimate, for choosing: a backend measures it when it is made,
// and its KV pool has what is left then.
struct GpuStepCost {
  int64_t fixed = 0;     // whatever a step holds: graphs, partial sums of products
  int64_t row = 0;       // of each token of a step
  int64_t state = 0;     // exact: the recurrent state of one sequence
  int64_t sequence = 0;  // of each place for a sequence, its state among them, but for what grows with the context
  int64_t position =
      0;  // of each place and each token of the longest sequence: partial results of attention, block tables
  int64_t kv_block = 0;      // exact: keys and values of kBlockTokens tokens
  int64_t window_block = 0;  // exact: those of layers that attend to a window, where they have blocks of their own
};
// An error if the sizes that a file gives are no numbers of bytes.
Result<GpuStepCost> gpu_step_cost(const EngineOptions& options, const ModelConfig& model);

// Fills in context, max_sequences, max_batch_tokens and kv_tokens where they are 0:
// - Steps of 2048 tokens, of fewer (512 at least) while those take more than an eighth of what weights leave.
// - The trained context, or the longest whose keys and values take half of the rest.
// - 256 sequences, or as many as take no more than half of the rest with all that is kept for each of them, and beside
// which
//   the KV pool has 512 tokens for each.
// - The KV pool: what is left when all else has been allocated, as far as sequences and prefix cache can use it
//   (EngineOptions::kv_is_bound).
// Fault::kCapacity, with numbers, for what cannot fit whatever the scratch memory.
Result<EngineOptions> plan_gpu(EngineOptions options, const ModelConfig& model, const GpuMemory& memory);

// How many window blocks of so many bytes there are, one that stays zero not among them. First what `sequences` running
// ones need, in half of `left` bytes at most, or what a single one needs if that is more: then fewer run at once, where
// all are long. Then for `places` of the prefix cache, in a quarter of `left` at most. `others` bytes stay for the KV
// blocks of the other layers. 0: not even one sequence fits, or needs any.
int32_t window_pool(const WindowNeeds& needs, int64_t sequences, int64_t places, int64_t left, int64_t block_bytes,
                    int64_t others);

// Of the states that the prefix cache would like, as many as take a quarter of `left` bytes at most and leave room
// for one sequence's keys and values.
int32_t saved_states(int64_t wanted, int64_t left, int64_t state_bytes, int64_t context_bytes);

}  // namespace quire
