// The sixteen values of IQ4_NL and IQ4_XS: a code's value is one of them times a scale. They stand close
// together about zero, as weights do. Source: the published definition of the formats (ggml type table).
#pragma once

#include <cstdint>

namespace quire::quant {

inline constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

}  // namespace quire::quant
