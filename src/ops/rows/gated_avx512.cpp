// gated_product in vectors of 16 floats.
// clang-format off
#include "ops/simd/vec_avx512.h"
#include "ops/simd/math.h"
#include "ops/rows/gated_walk.h"
// clang-format on

namespace quire::rows {

void gated_product_avx512(const GatedRows& r, int64_t begin, int64_t end) {
  gated_rows<simd::Vec512>(r, begin, end);
}

}  // namespace quire::rows
