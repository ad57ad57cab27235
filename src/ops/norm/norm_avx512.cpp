// The norms in vectors of 16 floats. Bound by memory: a row is read twice, the second time from the L1 cache.
// clang-format off
#include "ops/simd/vec_avx512.h"
#include "ops/simd/math.h"
// clang-format on
#include "ops/norm/rows.h"

namespace quire::norm {

void add_rms_norm_avx512(const AddRmsNormRows& r, int64_t begin, int64_t end) {
  add_rms_norm<simd::Vec512>(r, begin, end);
}
void gated_rms_norm_avx512(const GatedRmsNormRows& r, int64_t begin, int64_t end) {
  gated_rms_norm<simd::Vec512>(r, begin, end);
}

}  // namespace quire::norm
