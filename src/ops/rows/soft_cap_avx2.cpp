// soft_cap in vectors of 8 floats.
// clang-format off
#include "ops/simd/vec_avx2.h"
#include "ops/rows/soft_cap_walk.h"
// clang-format on

namespace quire::rows {

void soft_cap_avx2(const CappedRows& r, int64_t t, int64_t begin, int64_t end) {
  soft_cap_row<simd::Vec256>(r, t, begin, end);
}

}  // namespace quire::rows
