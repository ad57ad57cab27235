// reduce_partials in vectors of 8 floats.
// clang-format off
#include "ops/simd/vec_avx2.h"
#include "ops/rows/reduce_walk.h"
// clang-format on

namespace quire::rows {

void reduce_avx2(const PartialRows& r, int64_t begin, int64_t end) {
  reduce_rows<simd::Vec256>(r, begin, end);
}

}  // namespace quire::rows
