// The chunked form in float32, in vectors of 16 floats.
// clang-format off
#include "ops/simd/vec_avx512.h"
#include "ops/simd/math.h"
// clang-format on
#include "ops/gated_delta/chunked_f32.h"

namespace quire::gdn {

void chunked_avx512(const ChunkedWork& w, int64_t begin, int64_t end, std::byte* scratch) {
  chunked_f32_units<simd::Vec512>(w, begin, end, scratch);
}

}  // namespace quire::gdn
