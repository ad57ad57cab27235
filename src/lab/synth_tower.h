// The vision tower of a model of known shapes, with random weights, as an mmproj file.
#pragma once

#include <cstdint>
#include <string>

#include "lab/synth_shapes.h"

namespace quire::cli {

// Writes it; returns the file's bytes. `s` is hybrid: such models are published with one of two towers, in BF16.
Result<uint64_t> write_synth_tower(const SynthShape& s, uint64_t seed, const std::string& path);

}  // namespace quire::cli
