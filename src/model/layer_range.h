// Layers that lie one behind the other.
#pragma once

#include <cstdint>

namespace quire {

struct LayerRange {
  int32_t first = 0, end = 0;  // [first, end)

  int32_t count() const { return end - first; }
  bool contains(int64_t layer) const { return layer >= first && layer < end; }
  bool operator==(const LayerRange&) const = default;
};

}  // namespace quire
