// mix_rows in vectors of 8 floats.
// clang-format off
#include "ops/simd/vec_avx2.h"
#include "ops/mix_rows/walk.h"
// clang-format on

namespace quire::mix_rows_detail {

void rows_avx2(const Rows& r, int64_t begin, int64_t end) {
  mix<simd::Vec256>(r, begin, end);
}

}  // namespace quire::mix_rows_detail
