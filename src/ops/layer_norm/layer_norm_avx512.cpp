// layer_norm in vectors of 16 floats.
// clang-format off
#include "ops/simd/vec_avx512.h"
#include "ops/layer_norm/rows.h"
// clang-format on

namespace quire::layer_norm_detail {

void rows_avx512(const Rows& r, int64_t begin, int64_t end) {
  norm_rows<simd::Vec512>(r, begin, end);
}

}  // namespace quire::layer_norm_detail
