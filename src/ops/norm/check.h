// Sizes of the norms' calls, read from the views and checked by name.
#pragma once

#include "ops/norm/norm.h"

namespace quire::norm {

struct AddRmsNormSizes {
  int64_t T, D;
};
AddRmsNormSizes check(const AddRmsNormArgs& a);

struct GatedRmsNormSizes {
  int64_t T, Hv, Dv;
};
GatedRmsNormSizes check(const GatedRmsNormArgs& a);

// The kernels behind the tables; reference.cpp.
void add_rms_norm_reference(const OpContext& ctx, const AddRmsNormArgs& a);
void gated_rms_norm_reference(const OpContext& ctx, const GatedRmsNormArgs& a);

}  // namespace quire::norm
