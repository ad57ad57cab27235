// How a model's weights lie on a GPU: what is decided before a byte of them is copied.
#pragma once

#include "model/decoder.h"
#include "vision/tower.h"

namespace quire {

// Whether a shared expert lies behind the others as one more of them: then its rows share their launches.
bool stacks_shared_expert(const Weight& gate, const Weight& up, const Weight& down, const Weight& shared_gate,
                          const Weight& shared_up, const Weight& shared_down);

// The type that a table of rows to embed has there: its own where a kernel decodes it, else F16.
DType table_type_on_gpu(const Weight& table);

// A decoder with the types and the order of weights that it has on a GPU, at addresses that nobody may read: for steps
// whose kernels are chosen and not run (OpContext::only_chooses).
Decoder placed_in_thought(const Decoder& decoder);
std::unique_ptr<const VisionTower> placed_in_thought(const VisionTower& tower);

}  // namespace quire
