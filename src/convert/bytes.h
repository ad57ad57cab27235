// What readers of tensors share: numbers from bytes that are not aligned, and counts of blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace quire::convert {

// The number at p, which may be at any address.
template <class T>
T load_as(const std::byte* p) {
  T x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

// How many blocks of `size` hold `count`, of which neither is negative.
constexpr int64_t ceil_div(int64_t count, int64_t size) {
  return (count + size - 1) / size;
}

}  // namespace quire::convert
