// The configuration of AMX tile registers. Included only by *_amx.cpp files.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace quire::simd {
namespace {

// The operand of ldtilecfg, palette 1. A tile has up to 16 rows of up to 64 bytes; one without rows does not exist.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  void set(int tile, int64_t count, int64_t bytes) {
    rows[tile] = static_cast<uint8_t>(count);
    row_bytes[tile] = static_cast<uint16_t>(count > 0 ? bytes : 0);
  }
  void load() const {
    asm volatile("" ::"m"(*this) : "memory");  // GCC 12 does not see that the instruction reads all of it
    _tile_loadconfig(this);
  }
};

}  // namespace
}  // namespace quire::simd
