// The chunked form in float32, in vectors of 8 floats.
// clang-format off
#include "ops/simd/vec_avx2.h"
#include "ops/simd/math.h"
// clang-format on
#include "ops/gated_delta/chunked_f32.h"

namespace quire::gdn {

void chunked_avx2(const ChunkedWork& w, int64_t begin, int64_t end, std::byte* scratch) {
  chunked_f32_units<simd::Vec256>(w, begin, end, scratch);
}

}  // namespace quire::gdn
