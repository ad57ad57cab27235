// The vision tower of a model of known shapes, with random weights, as an mmproj file.
#pragma once

#include <cstdint>
#include <string>

#include "lab/synth_shapes.h"

namespace quire::cli {

// Writes it; returns the file's bytes. `s` sees: such models are published with one of two towers, in BF16.
// Where the model has fewer layers than its tower blocks, the tower has as many blocks.
Result<uint64_t> write_synth_tower(const SynthShape& s, uint64_t seed, const std::string& path);

}  // namespace quire::cli
