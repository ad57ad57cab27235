// SipHash-2-4 with 128 bits of output (Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012): for tables
// that strangers fill. Who does not know the key cannot find two inputs with one hash.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace quire {

struct Hash128 {
  uint64_t low = 0, high = 0;
  bool operator==(const Hash128&) const = default;
};

class KeyedHash {
 public:
  KeyedHash(uint64_t key0, uint64_t key1) : key0_(key0), key1_(key1) {}
  // The two halves of the key: a secret.
  std::array<uint64_t, 2> key() const { return {key0_, key1_}; }
  // A key that nobody knows.
  static KeyedHash random();
  Hash128 operator()(std::span<const std::byte> message) const;

 private:
  uint64_t key0_, key1_;
};

}  // namespace quire
