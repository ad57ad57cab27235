// gated_product, written once for both vector widths. Include after ops/simd/vec_*.h and ops/simd/math.h.
#pragma once

#include "ops/gemm/gated_simd.h"
#include "ops/rows/gated.h"
#include "ops/simd/pieces.h"

namespace quire::rows {
namespace {

template <class V, class Y>
void gated_rows(const GatedRows& r, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const float* const gate = r.gate + t * r.gate_stride;
    const float* const up = r.up + t * r.up_stride;
    Y* const y = static_cast<Y*>(r.y) + t * r.y_stride;
    simd::for_vectors<V>(r.width, [&](int64_t i, int n) {
      simd::store(gemm::gated_vectors(r.activation, simd::load<V>(gate + i, n), simd::load<V>(up + i, n)), y + i, n);
    });
  }
}

template <class V>
void gated_rows(const GatedRows& r, int64_t begin, int64_t end) {
  r.y_bf16 ? gated_rows<V, uint16_t>(r, begin, end) : gated_rows<V, float>(r, begin, end);
}

}  // namespace
}  // namespace quire::rows
