// The scales of sub-blocks, unpacked to bytes in words: what the decoders of every instruction set begin with.
// Layouts: quant/kquants.cpp and quant/iq4.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace quire::gemm {
namespace {

// Q3_K: byte j of of[j / 8] is scale j, 0 to 63, of 16 from the twelve bytes at `s`.
struct SixteenSixes {
  uint64_t of[2];
};
inline SixteenSixes q3_k_scales(const std::byte* s) {
  constexpr uint64_t kFour = 0x0f0f'0f0f'0f0f'0f0f, kTwo = 0x3030'3030'3030'3030;
  uint64_t low;
  uint32_t high;
  std::memcpy(&low, s, 8);
  std::memcpy(&high, s + 8, 4);
  const uint64_t h = high;
  // Bits 0-1 of the four bytes belong to scales 0-3, bits 2-3 to 4-7, and so on: all are moved to bits 4-5.
  return {{(low & kFour) | ((h << 4 | h << 2 << 32) & kTwo), (low >> 4 & kFour) | ((h | h >> 2 << 32) & kTwo)}};
}

// IQ4_XS: byte j is scale j, 0 to 63, of a block's 8.
inline uint64_t iq4_xs_scales(const std::byte* block) {
  uint16_t high;
  uint32_t low;
  std::memcpy(&high, block + 2, 2);
  std::memcpy(&low, block + 4, 4);
  // Apart step by step, by halves: to nibbles in bytes, to pairs of bits in bytes.
  uint64_t fours = low, twos = high;
  fours = (fours | fours << 16) & 0x0000'ffff'0000'ffff;
  fours = (fours | fours << 8) & 0x00ff'00ff'00ff'00ff;
  fours = (fours | fours << 4) & 0x0f0f'0f0f'0f0f'0f0f;
  twos = (twos | twos << 24) & 0x0000'00ff'0000'00ff;
  twos = (twos | twos << 12) & 0x000f'000f'000f'000f;
  twos = (twos | twos << 6) & 0x0303'0303'0303'0303;
  return fours | twos << 4;
}

}  // namespace
}  // namespace quire::gemm
