// Inside rows/: what the vector kernels of gated_product work on, as for reduce.h.
#pragma once

#include <cstdint>

#include "ops/gemm/activation.h"

namespace quire::rows {

struct GatedRows {
  const float *gate, *up;
  int64_t gate_stride, up_stride, width;  // strides in elements
  void* y;                                // float or bf16
  int64_t y_stride;
  bool y_bf16;
  GateActivation activation;
};

// Rows [begin, end).
void gated_product_avx2(const GatedRows& r, int64_t begin, int64_t end);
void gated_product_avx512(const GatedRows& r, int64_t begin, int64_t end);

}  // namespace quire::rows
