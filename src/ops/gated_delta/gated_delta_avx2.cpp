// gdn_prepare and the recurrent form in vectors of 8 floats.
// clang-format off
#include "ops/simd/vec_avx2.h"
#include "ops/simd/math.h"
// clang-format on
#include "ops/gated_delta/prepare.h"
#include "ops/gated_delta/recurrent.h"

namespace quire::gdn {

void prepare_avx2(const PrepareWork& w, int64_t begin, int64_t end) {
  prepare_units<simd::Vec256>(w, begin, end);
}
void recurrent_avx2(const RecurrentWork& w, int64_t begin, int64_t end, float* scratch) {
  recurrent_units<simd::Vec256>(w, begin, end, scratch);
}

}  // namespace quire::gdn
