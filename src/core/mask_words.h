// A mask over a vocabulary. CUDA sources read this file too: it includes standard integers alone.
#pragma once

#include <cstdint>

namespace quire {

// Words of a mask: bit i % 32 of word i / 32 is set if token i may be drawn.
constexpr int64_t mask_words(int64_t vocab) {
  return (vocab + 31) / 32;
}

}  // namespace quire
