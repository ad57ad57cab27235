// Writes a model's named intermediates to files, to compare two implementations layer by layer.
#pragma once

#include <memory>

#include "model/model.h"

namespace quire::cli {

// A probe that writes "<dir>/<step>-<layer>-<name>.npy" (float32, C order; layer "model" outside the blocks)
// for every intermediate; steps count from 0. Creates the folder. What cannot be written is said once, sets `failed`,
// and ends the dump, not the work.
Result<LayerProbe> make_layer_dump(const std::string& dir, const std::shared_ptr<bool>& failed);

}  // namespace quire::cli
