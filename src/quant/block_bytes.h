// Reading and writing what a block is made of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/float.h"

namespace quire::quant {

// Blocks are not aligned; these load and store what lies at any address.
inline float load_half(const std::byte* at) {
  half h;
  std::memcpy(&h.bits, at, sizeof h.bits);
  return to_float(h);
}
inline void store_half(std::byte* at, float x) {
  const half h = to_half(x);
  std::memcpy(at, &h.bits, sizeof h.bits);
}
inline uint8_t load_u8(const std::byte* at) {
  return static_cast<uint8_t>(*at);
}
inline int8_t load_i8(const std::byte* at) {
  return static_cast<int8_t>(*at);
}
inline uint32_t load_u32(const std::byte* at) {
  uint32_t x;
  std::memcpy(&x, at, sizeof x);
  return x;
}

}  // namespace quire::quant
