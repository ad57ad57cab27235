// The CUDA kernel in the table of gelu.
#pragma once

#include "ops/gelu/gelu.h"

namespace quire::cuda {

bool gelu_fits(const Machine& m, const GeluArgs& a);
void gelu(const OpContext& ctx, const GeluArgs& a);

inline constexpr std::string_view kGeluTakes = "fewer than 2^31 elements";

}  // namespace quire::cuda
