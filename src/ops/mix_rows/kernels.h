// Inside mix_rows/: what the vector kernels work on. Plain pointers, so that the files compiled for newer CPUs
// instantiate nothing that others share.
#pragma once

#include <cstdint>

namespace quire::mix_rows_detail {

struct Rows {
  const int32_t* rows;
  const float *weights, *table;
  float* x;
  int64_t rows_stride, weights_stride, table_stride, x_stride;  // elements
  int64_t count, width;                                         // K and D
  bool add_to_x;
};

// Rows [begin, end).
void rows_avx2(const Rows& r, int64_t begin, int64_t end);
void rows_avx512(const Rows& r, int64_t begin, int64_t end);

}  // namespace quire::mix_rows_detail
