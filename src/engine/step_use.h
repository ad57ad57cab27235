// What steps that may still be under way do to the caches: so that moves to and from the host need not wait for them.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/host_move.h"
#include "model/step.h"

namespace quire {

class StepUse {
 public:
  // Adds a step of a cache of so many blocks and slots, as the host laid it out. Its own moves to and from the host are
  // not counted.
  void note(const StepBatch& step, int32_t blocks, int32_t slots);
  // So that note() allocates nothing.
  void reserve(int32_t blocks, int32_t slots);
  // Nothing is under way.
  void clear();

  // Whether the move must wait for a step: one to the host for a step that writes what it reads, one from the host
  // for a step that reads or writes what it writes.
  bool delays_out(const HostMove& m) const { return use(m) >= kWritten; }
  bool delays_in(const HostMove& m) const { return use(m) >= kRead; }

 private:
  enum Use : uint8_t { kNone, kRead, kWritten };
  Use use(const HostMove& m) const {
    const std::vector<Use>& all = m.piece < 0 ? blocks_ : slots_;
    const auto i = static_cast<size_t>(m.device);
    return i < all.size() ? all[i] : kNone;
  }
  static void note_pairs(const Tensor& pairs, int32_t count, std::vector<Use>& uses);
  std::vector<Use> blocks_, slots_;  // empty: nothing is under way
};

}  // namespace quire
