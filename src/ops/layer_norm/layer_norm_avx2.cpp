// layer_norm in vectors of 8 floats.
// clang-format off
#include "ops/simd/vec_avx2.h"
#include "ops/layer_norm/rows.h"
// clang-format on

namespace quire::layer_norm_detail {

void rows_avx2(const Rows& r, int64_t begin, int64_t end) {
  norm_rows<simd::Vec256>(r, begin, end);
}

}  // namespace quire::layer_norm_detail
