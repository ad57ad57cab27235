// The kernels behind linear's table.
#pragma once

#include "ops/gemm/core.h"
#include "ops/linear/linear.h"

namespace quire::linear_detail {

void run(const gemm::Core& core, const OpContext& ctx, const LinearArgs& a);
void reference(const OpContext& ctx, const LinearArgs& a);

}  // namespace quire::linear_detail
