// The kernels behind linear's table.
#pragma once

#include "ops/linear/linear.h"

namespace quire::linear_detail {

void reference(const OpContext& ctx, const LinearArgs& a);

}  // namespace quire::linear_detail
