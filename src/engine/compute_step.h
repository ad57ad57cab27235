// What a step is, on every device: copies of blocks and states, tokens to be noted, the pass, the sampling.
#pragma once

#include <cstdint>
#include <span>

#include "model/decoder.h"
#include "model/step.h"
#include "ops/sampling/sampling.h"

namespace quire {

// A backend's own memory that every step reads and writes.
struct StepMemory {
  const CacheViews& cache;
  Tensor kept;                          // [kept, D] f32: hidden states from step to step, where there is an mtp block
  TokenHistory history;                 // what penalties look back on
  std::span<const int32_t> suppressed;  // tokens that no row may have
  SampleOutputs out;                    // of the step's logit rows; `sampled` is the batch's
  SampleOutputs scored;                 // of its scored rows
  Tensor hidden;                        // [hidden_rows, D] f32: of the step's hidden rows
};

// A step with masks can be computed in three parts: copies and drafts (which masks depend on), the pass, and the
// sampling with what follows it, once masks are there. The last part finds the pass's logits in the workspace, where
// nothing else may have been since. kRest is all behind the first part.
enum class StepPart { kAll, kBegin, kPass, kSampling, kRest };

// The model, and its block for multi-token prediction; null: there is none.
struct StepDecoders {
  const Decoder& model;
  const Decoder* mtp = nullptr;
};

// `drafts`: what of the step is the block's.
void compute_step(const OpContext& ctx, const StepDecoders& decoders, const StepBatch& batch, const DraftBatch& drafts,
                  const ForwardOptions& options, const StepMemory& memory, StepPart part = StepPart::kAll);

// Whether a step's copies and swaps name what exists, once, on the host, where they are laid out. What does not is a
// mistake of ours, and fatal.
struct CopyLimits {
  int64_t blocks = 0, slots = 0, pages = 0;  // pages: of the host's memory
  int64_t block_bytes = 0, state_bytes = 0;
};
void check_copies(const StepArrays& a, const StepShape& shape, const CopyLimits& limits);
// Likewise of StepArrays::ends: what rows of prompts attend to grows from each to the next, within the segment.
void check_ends(const SegmentArray& segments, const int32_t* ends);

// Bytes of a KV block, of a recurrent state, and of a page of the host. A page holds a block, or the piece of a state
// that has its number.
struct MoveUnits {
  int64_t block = 0, state = 0, page = 0;
};
// Where the bytes of one move lie: from the beginning of the blocks, of the slots, and of the host's pages. There may
// be none: of a device that has none of the layers that keep such things, or of a state's last pieces.
struct MoveBytes {
  bool state = false;  // device_offset is among the slots
  int64_t device_offset = 0, host_offset = 0, count = 0;
};
MoveBytes bytes_of(const HostMove& m, const MoveUnits& units);

}  // namespace quire
