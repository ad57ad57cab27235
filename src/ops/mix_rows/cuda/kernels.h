// The CUDA kernel in the table of mix_rows.
#pragma once

#include "ops/mix_rows/mix_rows.h"

namespace quire::cuda {

bool mix_rows_fits(const Machine& m, const MixRowsArgs& a);
void mix_rows(const OpContext& ctx, const MixRowsArgs& a);

inline constexpr std::string_view kMixRowsTakes = "fewer than 2^31 elements";

}  // namespace quire::cuda
