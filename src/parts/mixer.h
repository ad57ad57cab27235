// What a layer mixes positions with.
#pragma once

#include <cstdint>
#include <vector>

namespace quire {

enum class Mixer : uint8_t { kAttention, kWindowAttention, kDelta };

// Of each layer that is executed in the main pass.
using Mixers = std::vector<Mixer>;

}  // namespace quire
