// One rank's share of a model, as a configuration: what arch/shard.h says, for all of its layers.
#pragma once

#include "arch/shard.h"
#include "model/config.h"

namespace quire {

// What the ranks' parts of feed-forwards are multiples of: the largest block of the types that a file has of the
// matrices that are cut so.
Shard::Grains share_grains(const gguf::File& file);

// Whether the ranks can share every layer; otherwise an error with the number that does not divide.
Status check_shares(const ModelConfig& whole, const Shard& s);

// The numbers of the rank's parts. Vocabulary, hidden size and what all ranks have stay as they are.
ModelConfig share_config(const ModelConfig& whole, const Shard& s);

}  // namespace quire
