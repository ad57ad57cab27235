// Philox4x32-10 ("Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011): a keyed bijection of 128-bit
// counters whose outputs pass BigCrush for every key. No state, so any position of any stream is computed on
// its own.
#pragma once

#include <array>
#include <cstdint>

namespace quire {

using PhiloxCounter = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

constexpr PhiloxCounter philox4x32(PhiloxCounter c, PhiloxKey k) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xd2511f53} * c[0], b = uint64_t{0xcd9e8d57} * c[2];
    c = {static_cast<uint32_t>(b >> 32) ^ c[1] ^ k[0], static_cast<uint32_t>(b),
         static_cast<uint32_t>(a >> 32) ^ c[3] ^ k[1], static_cast<uint32_t>(a)};
    k = {k[0] + 0x9e3779b9, k[1] + 0xbb67ae85};
  }
  return c;
}

}  // namespace quire
