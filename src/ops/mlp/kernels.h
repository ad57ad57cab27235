// The kernels behind swiglu_mlp's table.
#pragma once

#include "ops/mlp/mlp.h"

namespace quire::mlp_detail {

void reference(const OpContext& ctx, const MlpArgs& a);

}  // namespace quire::mlp_detail
