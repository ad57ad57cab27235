// One move between the caches and the host's memory, as a step's arrays hold it.
#pragma once

#include <cstdint>

namespace quire {

// A KV block, or a piece of a recurrent state as large as a block (the last one may be shorter), and the page of the
// host's memory that it goes to or comes from.
struct HostMove {
  int32_t device = 0;  // block, or state slot
  int32_t piece = -1;  // of the state; -1: a block
  int32_t page = 0;
  bool operator==(const HostMove&) const = default;
};

}  // namespace quire
