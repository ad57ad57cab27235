// Small vector pieces of the cores for 256-bit vectors. Everything has internal linkage.
#pragma once

#include "core/m256.h"

#include <cstdint>

#include "ops/gemm/core.h"
#include "ops/simd/math.h"  // NOLINT: after the vectors that it works on
#include "ops/simd/vec_avx2.h"
// What follows needs both.
#include "ops/gemm/gated_simd.h"

namespace quire::gemm {
namespace {

// Outputs n, n + 1, ... n + count - 1, at most 16, of token t.
inline void store_row16(const Epilogue& out, int64_t t, int64_t n, int64_t count, const __m256 (&sums)[2],
                        float scale) {
  using simd::Vec256;
  const int64_t at = (out.row_of == nullptr ? t : out.row_of[t]) * out.stride + n - out.first;
  for (int i = 0; i < 2 && count > 8 * i; ++i) {
    const int left = static_cast<int>(count - 8 * i);
    Vec256 v{_mm256_mul_ps(sums[i], _mm256_set1_ps(scale))};
    const auto load = [&](const float* p) { return left >= 8 ? Vec256::load(p) : Vec256::load(p, left); };
    const auto store = [&](auto* p) { left >= 8 ? v.store(p) : v.store(p, left); };
    if (out.bias != nullptr) v = v + load(out.bias + n + 8 * i);
    if (out.dtype == DType::kBF16) {
      store(static_cast<uint16_t*>(out.y) + at + 8 * i);
    } else {
      float* const y = static_cast<float*>(out.y) + at + 8 * i;
      if (out.add) v = load(y) + v;
      store(y);
    }
  }
}

// Eight values of gate and up in one, rounded to bf16.
inline __m256 swiglu8(GateActivation activation, __m256 gate, __m256 up) {
  using V = simd::Vec256;
  return V::widen(gated_vectors(activation, V{gate}, V{up}).to_bf16()).v;
}

}  // namespace
}  // namespace quire::gemm
