// Steps that are only asked about: which kernel would take each of their calls.
#pragma once

#include "model/decoder.h"
#include "vision/tower.h"

namespace quire {

struct DryStep {
  int32_t sequences = 0;    // each generates a token
  int64_t context = 1;      // positions of each of them after the step
  int64_t prompt_rows = 0;  // of one prompt, from its beginning
  KvCacheType kv_cache = KvCacheType::kAuto;
  bool latency = false;                          // generated tokens take the arithmetic for latency
  TokenRounding prompts = TokenRounding::kNone;  // what these become beside weights of few bits
  const KernelChoice* choice = nullptr;          // may be null
};

// Shows `observer` every call of a step on such a machine. Nothing is computed, and no weight or cache is read: weights
// may stay in their mapping, or have no memory at all. On a GPU the decoder is one that has been placed there, or in
// thought (engine/gpu_placement.h).
void dry_step(const Decoder& decoder, const Machine& machine, const DryStep& step, LaunchObserver& observer);

// `decoder` may be a block for multi-token prediction, too.
// Fault::kRequest where no kernel of a GPU takes some call of this model: operator, types and shapes, and what kernels
// there are. Needs no GPU, and no memory for the weights.
Status check_gpu_kernels(const Decoder& decoder, const Machine& machine, KvCacheType kv_cache);
// The same of a vision tower.
Status check_gpu_kernels(const VisionTower& tower, const Machine& machine);

}  // namespace quire
