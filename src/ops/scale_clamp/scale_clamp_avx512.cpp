// scale_clamp in vectors of 16 floats.
// clang-format off
#include "ops/simd/vec_avx512.h"
#include "ops/scale_clamp/rows.h"
// clang-format on

namespace quire::scale_clamp_detail {

void rows_avx512(const Rows& r, int64_t begin, int64_t end) {
  scale_clamp_rows<simd::Vec512>(r, begin, end);
}

}  // namespace quire::scale_clamp_detail
