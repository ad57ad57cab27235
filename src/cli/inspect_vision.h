// What `quire inspect` says of a model's vision tower.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "engine/model_parts.h"

namespace quire::cli {

// Of the tower beside the model at `path` or within it, with what pictures of a few sizes become; nothing where there
// is none, or the model does not run. Printed, or added to `out`.
void report_vision(const std::string& path, const ModelParts& model, nlohmann::ordered_json* out);

}  // namespace quire::cli
