// The CUDA kernel in the table of layer_norm.
#pragma once

#include "ops/layer_norm/layer_norm.h"

namespace quire::cuda {

bool layer_norm_fits(const Machine& m, const LayerNormArgs& a);
void layer_norm(const OpContext& ctx, const LayerNormArgs& a);

inline constexpr std::string_view kLayerNormTakes = "up to 24576 columns";

}  // namespace quire::cuda
