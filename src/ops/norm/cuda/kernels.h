// The CUDA kernels in the tables of the norms.
#pragma once

#include "ops/norm/norm.h"

namespace quire::cuda {

bool add_rms_norm_fits(const Machine& m, const AddRmsNormArgs& a);
void add_rms_norm(const OpContext& ctx, const AddRmsNormArgs& a);
bool gated_rms_norm_fits(const Machine& m, const GatedRmsNormArgs& a);
void gated_rms_norm(const OpContext& ctx, const GatedRmsNormArgs& a);

inline constexpr std::string_view kAddRmsNormTakes =
    "up to 32768 columns with rows aligned to 4 elements, 8192 if they are no multiple of 4";
inline constexpr std::string_view kGatedRmsNormTakes = "heads of 128, with rows aligned to 8 elements";

}  // namespace quire::cuda
