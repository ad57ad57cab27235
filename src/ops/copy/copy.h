// Copies inside the caches: copy-on-write of KV blocks, saving and restoring of recurrent states.
#pragma once

#include "ops/op.h"

namespace quire {

// pool[dst] = pool[src] along the outermost dimension, for every pair and every pool. Destinations are
// distinct and no row is both a source and a destination.
// pools [slots, ...] of any type; a row is contiguous, the row stride may exceed it. Bound: memory.
struct CopySlotsArgs {
  std::span<const Tensor> pools;
  std::span<const std::pair<int32_t, int32_t>> pairs;  // (src, dst)
};
void copy_slots(const OpContext& ctx, const CopySlotsArgs& a);
std::span<const Kernel<CopySlotsArgs>> copy_slots_kernels();

}  // namespace quire
