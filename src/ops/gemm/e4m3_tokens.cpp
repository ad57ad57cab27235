#include "ops/gemm/e4m3_tokens.h"

#include <algorithm>
#include <bit>

#include "core/float.h"

namespace quire::gemm {

void round_to_e4m3(const float* x, int64_t cols, float* to) {
  for (int64_t first = 0; first < cols; first += kE4m3TokenCols) {
    uint32_t most = std::bit_cast<uint32_t>(kLeastE4m3Magnitude);  // magnitudes of NaN and infinity are the largest
    for (int64_t c = first; c < first + kE4m3TokenCols; ++c)
      most = std::max(most, std::bit_cast<uint32_t>(x[c]) & 0x7fffffffu);
    const auto largest = std::bit_cast<float>(most);
    const float factor = kLargestE4m3 / largest, scale = largest / kLargestE4m3;
    for (int64_t c = first; c < first + kE4m3TokenCols; ++c) to[c] = to_float(to_e4m3(x[c] * factor)) * scale;
  }
}

}  // namespace quire::gemm
