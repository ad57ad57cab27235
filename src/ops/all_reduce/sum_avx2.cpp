// The sum of the ranks' rows in vectors of 8 floats.
// clang-format off
#include "ops/simd/vec_avx2.h"
#include "ops/all_reduce/rows.h"
// clang-format on

namespace quire::all_reduce_detail {

void sum_avx2(const RankRows& r, int64_t begin, int64_t end) {
  sum_rows<simd::Vec256>(r, begin, end);
}

}  // namespace quire::all_reduce_detail
