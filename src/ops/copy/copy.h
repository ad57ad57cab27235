// Copies inside the caches: saving and restoring of recurrent states.
#pragma once

#include "ops/op.h"

namespace quire {

// pool[dst] = pool[src] along the outermost dimension, for every pair.
//   pool  [slots, ...]  any type; a row is contiguous, the row stride may exceed it
//   pairs [n, 2] i32    (src, dst); destinations are distinct and no row is both a source and a destination;
//                      a pair with a negative number is padding, and skipped
// Bound: memory.
struct CopySlotsArgs {
  Tensor pool, pairs;
};
void copy_slots(const OpContext& ctx, const CopySlotsArgs& a);
extern const Operator<CopySlotsArgs> kCopySlotsOp;

}  // namespace quire
