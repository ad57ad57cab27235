// FNV-1a, 64 bits: fingerprints of our own data. Not for tables that strangers fill.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace quire {

inline constexpr uint64_t kFnvStart = 0xcbf29ce484222325;

inline uint64_t fnv1a(uint64_t h, const void* data, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) h = (h ^ static_cast<const unsigned char*>(data)[i]) * 0x100000001b3;
  return h;
}
inline uint64_t fnv1a(uint64_t h, std::string_view text) {
  const uint64_t length = text.size();
  return fnv1a(fnv1a(h, &length, sizeof length), text.data(), text.size());
}
inline uint64_t fnv1a_number(uint64_t h, int64_t n) {
  return fnv1a(h, &n, sizeof n);
}

}  // namespace quire
