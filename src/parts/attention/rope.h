// Rotary embeddings: what a model's are, and their frequencies with the scaling applied.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "ops/attention/attention.h"
#include "parts/weight_loader.h"

namespace quire {

struct RopeSpec {
  Rope::Style style = Rope::Style::kHalves;
  int32_t n_rot = 0;
  float freq_base = 10000.0f;
  enum class Scaling { kNone, kLinear, kYarn } scaling = Scaling::kNone;
  float factor = 1.0f;
  float attn_factor = 1.0f;
  int64_t original_context = 0;
  bool exact_yarn = false;  // Architecture::exact_yarn
  // Of YaRN: how far frequencies of short wavelengths keep what they were (1: whole), and between how many turns in the
  // original context the ramp lies.
  float extrapolation = 1.0f, beta_fast = 32.0f, beta_slow = 1.0f;
  // Pairs that are turned by time, row and column within an image; all 0: positions are one number. The first pairs
  // take turns between the three, as far as each has any left; time has the rest ("Qwen3-VL", arXiv:2511.21631).
  std::array<int32_t, 3> sections{};

  bool has_sections() const { return sections[1] > 0 || sections[2] > 0; }
};

class ModelKeys;

// Of layers that attend to all positions, with heads of so many elements. `context` is the trained one, which becomes
// less where positions beyond the context of the first training would have other frequencies.
Status read_rope(const ModelKeys& k, const Architecture& row, int32_t head_dim, int64_t& context, RopeSpec& r);
// Of layers that attend to a window, where `r` comes with what the others have.
Status read_local_rope(const ModelKeys& k, const Architecture& row, int32_t head_dim, RopeSpec& r);

struct RopeTable {
  std::vector<float> inv_freq;  // [n_rot / 2]
  float magnitude = 1.0f;
  std::vector<int32_t> axes;  // [n_rot / 2]; empty: without sections
  Rope rope(const RopeSpec& r) const {
    const auto pairs = static_cast<int64_t>(inv_freq.size());
    return {r.style, r.n_rot, make_tensor(inv_freq.data(), {pairs}), magnitude,
            axes.empty() ? Tensor{} : make_tensor(axes.data(), {pairs})};
  }
};

// theta_j = base^(-2j/n_rot) / divisors[j], then linear or YaRN scaling ("YaRN", arXiv:2309.00071). `divisors` may be
// empty.
RopeTable make_rope_table(const RopeSpec& c, std::span<const float> divisors);
// Divisors of the rotary frequencies (Llama 3), or those of the context of the first training (Phi-3); none: empty.
Result<std::span<const float>> load_rope_divisors(WeightLoader& w);

}  // namespace quire
