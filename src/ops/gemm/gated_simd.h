// The activations between gate and up (activation.h) in vectors. Include after ops/simd/vec_*.h and ops/simd/math.h.
#pragma once

#include "ops/gemm/activation.h"

namespace quire::gemm {
namespace {

// A NaN stays one.
template <class V>
inline V gated_vectors(GateActivation activation, V g, V u) {
  V exponent = g;
  if (activation == GateActivation::kGeluTanh) {
    const V inner = fma(V::set1(static_cast<float>(glu::kGeluCube)) * g * g, g, g);
    exponent = V::set1(static_cast<float>(2 * glu::kGeluRoot)) * inner;
  } else if (activation == GateActivation::kSwigluOai) {
    const V limit = V::set1(static_cast<float>(glu::kOaiLimit));
    g = min(limit, g);  // in this order a NaN stays one
    u = max(V::zero() - limit, min(limit, u)) + V::set1(1.0f);
    exponent = V::set1(static_cast<float>(glu::kOaiAlpha)) * g;
  }
  return simd::times_sigmoid(g, exponent) * u;
}

}  // namespace
}  // namespace quire::gemm
