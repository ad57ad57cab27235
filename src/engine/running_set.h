// The sequences that run, each at a batch slot of its own. Internal to the engine.
#pragma once

#include <memory>
#include <vector>

#include "engine/sequence.h"

namespace quire {

// Not thread-safe: the engine thread owns it.
class RunningSet {
 public:
  explicit RunningSet(int32_t slots);

  // Gives a waiting sequence a free slot, of which there is one.
  Sequence& add(std::unique_ptr<Sequence> s);
  Sequence& at(int32_t slot) const;
  const std::vector<std::unique_ptr<Sequence>>& all() const { return sequences_; }  // in order of admission
  int32_t size() const { return static_cast<int32_t>(sequences_.size()); }
  int32_t free_slots() const { return static_cast<int32_t>(free_.size()); }

  // Destroys the finished ones that no step in flight has rows of, after `release` was called with each.
  template <class Release>
  void remove_finished(const Release& release) {
    std::erase_if(sequences_, [&](const std::unique_ptr<Sequence>& s) {
      if (!s->finished() || s->in_flight > 0) return false;
      release(*s);
      free_slot(s->memory.slot);
      return true;
    });
  }

 private:
  void free_slot(int32_t slot);

  std::vector<std::unique_ptr<Sequence>> sequences_;
  std::vector<Sequence*> at_slot_;  // null: the slot is free
  std::vector<int32_t> free_;       // the one that is taken next last
};

}  // namespace quire
