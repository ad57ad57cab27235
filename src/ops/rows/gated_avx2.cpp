// gated_product in vectors of 8 floats.
// clang-format off
#include "ops/simd/vec_avx2.h"
#include "ops/simd/math.h"
#include "ops/rows/gated_walk.h"
// clang-format on

namespace quire::rows {

void gated_product_avx2(const GatedRows& r, int64_t begin, int64_t end) {
  gated_rows<simd::Vec256>(r, begin, end);
}

}  // namespace quire::rows
