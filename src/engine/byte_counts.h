// Products and sums of bytes that a model's file gives: a number too large to count is larger than any memory.
// Internal to the engine.
#pragma once

#include <algorithm>
#include <cstdint>

namespace quire {

constexpr int64_t kUncountable = INT64_MAX / 4;

constexpr int64_t capped(int64_t bytes) {
  return std::min(bytes, kUncountable);
}
inline int64_t times(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? kUncountable : capped(product);
}

}  // namespace quire
