// How many units the pools of a GPU's caches have, once it is known what all else has taken.
#pragma once

#include "engine/plan.h"

namespace quire {

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
