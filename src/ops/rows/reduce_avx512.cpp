// reduce_partials in vectors of 16 floats.
// clang-format off
#include "ops/simd/vec_avx512.h"
#include "ops/rows/reduce_walk.h"
// clang-format on

namespace quire::rows {

void reduce_avx512(const PartialRows& r, int64_t begin, int64_t end) {
  reduce_rows<simd::Vec512>(r, begin, end);
}

}  // namespace quire::rows
