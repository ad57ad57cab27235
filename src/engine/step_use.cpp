#include "engine/step_use.h"

#include <algorithm>

namespace quire {

void StepUse::reserve(int32_t blocks, int32_t slots) {
  blocks_.reserve(static_cast<size_t>(blocks));
  slots_.reserve(static_cast<size_t>(slots));
}

void StepUse::clear() {
  blocks_.clear();
  slots_.clear();
}

void StepUse::note_pairs(const Tensor& pairs, int32_t count, std::vector<Use>& uses) {
  for (int32_t i = 0; i < count; ++i) {
    const int32_t* const pair = pairs.row<int32_t>(i);
    if (pair[0] < 0 || pair[1] < 0) continue;
    Use& from = uses[static_cast<size_t>(pair[0])];
    from = std::max(from, kRead);
    uses[static_cast<size_t>(pair[1])] = kWritten;
  }
}

void StepUse::note(const StepBatch& step, int32_t blocks, int32_t slots) {
  blocks_.resize(static_cast<size_t>(blocks), kNone);
  slots_.resize(static_cast<size_t>(slots), kNone);
  for (const Segment& s : step.segments) {
    if (s.count == 0) continue;
    if (slots > 0 && s.state_slot >= 0) slots_[static_cast<size_t>(s.state_slot)] = kWritten;
    const int32_t* const table = step.segments.table(s);
    const int32_t end = (s.position + s.count + kBlockTokens - 1) / kBlockTokens;
    for (int32_t j = 0; j < end; ++j) {
      Use& block = blocks_[static_cast<size_t>(table[j])];
      block = std::max(block, j < s.position / kBlockTokens ? kRead : kWritten);
    }
  }
  if (slots > 0) note_pairs(step.slot_copies(), step.shape.slot_copies, slots_);
}

}  // namespace quire
