// The CUDA kernel in the table of scale_clamp.
#pragma once

#include "ops/scale_clamp/scale_clamp.h"

namespace quire::cuda {

bool scale_clamp_fits(const Machine& m, const ScaleClampArgs& a);
void scale_clamp(const OpContext& ctx, const ScaleClampArgs& a);

inline constexpr std::string_view kScaleClampTakes = "fewer than 2^31 elements";

}  // namespace quire::cuda
