// mix_rows in vectors of 16 floats.
// clang-format off
#include "ops/simd/vec_avx512.h"
#include "ops/mix_rows/walk.h"
// clang-format on

namespace quire::mix_rows_detail {

void rows_avx512(const Rows& r, int64_t begin, int64_t end) {
  mix<simd::Vec512>(r, begin, end);
}

}  // namespace quire::mix_rows_detail
