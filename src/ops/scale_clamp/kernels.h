// Inside scale_clamp/: what the vector kernels work on. Plain pointers, so that the files compiled for newer CPUs
// instantiate nothing that others share. bf16 is passed as its bits.
#pragma once

#include <cstdint>

namespace quire::scale_clamp_detail {

struct Rows {
  const void* x;
  void* y;
  const float *shift, *scale;  // of columns; both may be null
  float low, high;
  bool x_bf16, y_bf16;
  int64_t x_stride, y_stride, width;  // elements
};

// Rows [begin, end).
void rows_avx2(const Rows& r, int64_t begin, int64_t end);
void rows_avx512(const Rows& r, int64_t begin, int64_t end);

}  // namespace quire::scale_clamp_detail
