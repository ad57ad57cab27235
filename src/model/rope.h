// Rotary frequencies with their scaling applied.
#pragma once

#include <vector>

#include "model/config.h"

namespace quire {

struct RopeTable {
  std::vector<float> inv_freq;  // [n_rot / 2]
  float magnitude = 1.0f;
  Tensor tensor() const { return make_tensor(inv_freq.data(), {static_cast<int64_t>(inv_freq.size())}); }
};

// theta_j = base^(-2j/n_rot) / divisors[j], then linear or YaRN scaling ("YaRN", arXiv:2309.00071).
// `divisors` is the file's rope_freqs (Llama 3) or empty.
RopeTable make_rope_table(const RopeSpec& c, std::span<const float> divisors);

}  // namespace quire
