// Inside layer_norm/: what the vector kernels work on. Plain pointers, so that the files compiled for newer CPUs
// instantiate nothing that others share. bf16 is passed as its bits.
#pragma once

#include <cstdint>

namespace quire::layer_norm_detail {

struct Rows {
  float* x;
  const void* add;  // null: nothing is added
  const float *weight, *bias;
  void* h;
  bool add_bf16, h_bf16;
  int64_t x_stride, add_stride, h_stride;  // elements
  int64_t width;
  float eps;
};

// Rows [begin, end).
void rows_avx2(const Rows& r, int64_t begin, int64_t end);
void rows_avx512(const Rows& r, int64_t begin, int64_t end);

}  // namespace quire::layer_norm_detail
