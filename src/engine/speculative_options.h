// What whoever runs an engine says about drafts. None of it changes a text, only its speed.
#pragma once

#include <cstdint>

#include "engine/draft_plan.h"

namespace quire {

enum class SpeculativeMethod : uint8_t {
  kAuto,    // every drafter that the model and the engine have, where it pays
  kOff,     // none
  kMtp,     // the model's block for multi-token prediction alone
  kLookup,  // what followed earlier in the text alone (lookup_drafter.h)
};

struct SpeculativeOptions {
  SpeculativeMethod method = SpeculativeMethod::kAuto;
  int most_drafts = kMostDrafts;  // of a sequence in a step, 1 to kMostDrafts; how many there are is up to plan_drafts
};

}  // namespace quire
