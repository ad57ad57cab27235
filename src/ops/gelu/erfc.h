// erfc for x >= 0, by ln erfc(z) = ln t - z^2 + P(t) with t = 1 / (1 + z / 2). P is a Chebyshev fit over z from 0 to
// 16, where it is off by less than 8e-8; beyond, erfc is below float32's range.
#pragma once

namespace quire::gelu_detail {

// Of P, from the highest power on.
inline constexpr float kErfcPolynomial[] = {
    0.17071624160942175f,  -0.8187996427932864f, 1.4748580810370071f,  -1.1097361245824289f, 0.25235934827954276f,
    -0.16980598098419433f, 0.09060702346940866f, 0.37543544618903346f, 0.9998710629204537f,  -1.2655054099350178f};

}  // namespace quire::gelu_detail
