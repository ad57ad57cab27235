// The part of config.json that says how positions are rotated.
#pragma once

#include "convert/hf_config.h"
#include "convert/hf_keys.h"

namespace quire::convert {

// Reads rope_parameters (of transformers 5) or rope_scaling with what older files have beside it; fills
// rope_theta, rope, n_rot, rope_sections and notes. Needs row, class_name, head_dim and context.
// What transformers computes and a reader of GGUF does not, and what transformers itself cannot run, is
// refused.
Status read_hf_rope(const HfKeys& k, HfConfig& c);

// Divisors of the rotary frequencies, [n_rot / 2], where files say so what config.json says in other words (llama3,
// proportional); empty elsewhere.
std::vector<float> rope_divisors(const HfConfig& c);

}  // namespace quire::convert
