// What a model must be like for a GPU's kernels.
#pragma once

#include "model/config.h"

namespace quire {

// Fault::kRequest naming the operator and its limit, by the model's shapes alone: before its weights are loaded.
Status check_gpu_limits(const ModelConfig& model);

}  // namespace quire
