// The CUDA kernel in the table of normalise_patches.
#pragma once

#include "ops/normalise_patches/normalise_patches.h"

namespace quire::cuda {

bool normalise_patches_fits(const Machine& m, const NormalisePatchesArgs& a);
void normalise_patches(const OpContext& ctx, const NormalisePatchesArgs& a);

inline constexpr std::string_view kNormalisePatchesTakes = "fewer than 2^31 elements";

}  // namespace quire::cuda
