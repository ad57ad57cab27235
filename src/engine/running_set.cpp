#include "engine/running_set.h"

namespace quire {

RunningSet::RunningSet(int32_t slots) : at_slot_(static_cast<size_t>(slots)) {
  sequences_.reserve(at_slot_.size());
  free_.reserve(at_slot_.size());
  for (int32_t slot = slots - 1; slot >= 0; --slot) free_.push_back(slot);
}

Sequence& RunningSet::add(std::unique_ptr<Sequence> s) {
  QUIRE_CHECK(!free_.empty(), "sequence {} is admitted without a batch slot", s->id.v);
  QUIRE_CHECK(s->stage == Sequence::Stage::kWaiting, "sequence {} is admitted twice", s->id.v);
  s->stage = Sequence::Stage::kRunning;
  s->memory.slot = free_.back();
  free_.pop_back();
  at_slot_[static_cast<size_t>(s->memory.slot)] = s.get();
  return *sequences_.emplace_back(std::move(s));
}

Sequence& RunningSet::at(int32_t slot) const {
  Sequence* const s = at_slot_[static_cast<size_t>(slot)];
  QUIRE_CHECK(s != nullptr, "no sequence runs at batch slot {}", slot);
  return *s;
}

void RunningSet::free_slot(int32_t slot) {
  at_slot_[static_cast<size_t>(slot)] = nullptr;
  free_.push_back(slot);
}

}  // namespace quire
