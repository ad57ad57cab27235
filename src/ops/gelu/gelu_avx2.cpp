// gelu in vectors of 8 floats.
// clang-format off
#include "ops/simd/vec_avx2.h"
#include "ops/simd/math.h"
#include "ops/gelu/rows.h"
// clang-format on

namespace quire::gelu_detail {

void rows_avx2(const Rows& r, int64_t begin, int64_t end) {
  gelu_rows<simd::Vec256>(r, begin, end);
}

}  // namespace quire::gelu_detail
