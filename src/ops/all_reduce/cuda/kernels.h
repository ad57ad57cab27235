// The CUDA kernel in the table of all_reduce.
#pragma once

#include "ops/all_reduce/all_reduce.h"

namespace quire::cuda {

bool all_reduce_fits(const Machine& m, const AllReduceArgs& a);
void all_reduce(const OpContext& ctx, const AllReduceArgs& a);

inline constexpr std::string_view kAllReduceTakes =
    "up to 16384 columns, a multiple of 4, with rows aligned to 4 elements";

}  // namespace quire::cuda
