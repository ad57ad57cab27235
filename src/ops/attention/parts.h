// Partial results: GPUs cut the keys of a generated token in parts, compute these side by side and add them up.
#pragma once

#include <cstdint>

namespace quire {

inline constexpr int kPartKeys = 256;  // keys that one partial result covers

// Of a row behind so many keys, its own among them.
constexpr int64_t attention_parts(int64_t keys) {
  return (keys + kPartKeys - 1) / kPartKeys;
}

}  // namespace quire
