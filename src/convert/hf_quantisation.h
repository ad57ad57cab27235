// How the weights of a model folder were quantised, as config.json says it.
#pragma once

#include "convert/hf_config.h"
#include "convert/hf_keys.h"

namespace quire::convert {

// Refuses what is not read here, and what would be computed beside the weights; the tensors tell the others apart. Sets
// HfConfig::gptq_v2 and activation_scheme. `root` is the whole config.json, `k` the part that the text model is made
// from.
Status read_quantisation(const nlohmann::json& root, const HfKeys& k, HfConfig& c);

}  // namespace quire::convert
