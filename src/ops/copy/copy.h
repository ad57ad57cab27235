// Copies inside the caches: copy-on-write of KV blocks, saving and restoring of recurrent states.
#pragma once

#include "ops/op.h"

namespace quire {

// pool[dst] = pool[src] along the outermost dimension, for every pair and every pool. Destinations are
// distinct and no row is both a source and a destination.
struct CopySlotsArgs {
  std::span<const Tensor> pools;
  std::span<const std::pair<int32_t, int32_t>> pairs;  // (src, dst)
};
void copy_slots(const OpContext& ctx, const CopySlotsArgs& a);

}  // namespace quire
