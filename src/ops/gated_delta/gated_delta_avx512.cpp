// gdn_prepare and the recurrent form in vectors of 16 floats.
// clang-format off
#include "ops/simd/vec_avx512.h"
#include "ops/simd/math.h"
// clang-format on
#include "ops/gated_delta/prepare.h"
#include "ops/gated_delta/recurrent.h"

namespace quire::gdn {

void prepare_avx512(const PrepareWork& w, int64_t begin, int64_t end) {
  prepare_units<simd::Vec512>(w, begin, end);
}
void recurrent_avx512(const RecurrentWork& w, int64_t begin, int64_t end, float* scratch) {
  recurrent_units<simd::Vec512>(w, begin, end, scratch);
}

}  // namespace quire::gdn
