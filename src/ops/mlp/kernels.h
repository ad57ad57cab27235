// The kernels behind swiglu_mlp's table.
#pragma once

#include "ops/gemm/core.h"
#include "ops/mlp/mlp.h"

namespace quire::mlp_detail {

void run(const gemm::Core& core, const OpContext& ctx, const MlpArgs& a);
void reference(const OpContext& ctx, const MlpArgs& a);

}  // namespace quire::mlp_detail
