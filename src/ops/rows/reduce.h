// Inside rows/: what the vector kernels of reduce_partials work on. Plain pointers, so that the files compiled for
// newer CPUs instantiate nothing that others share.
#pragma once

#include <cstdint>

namespace quire::rows {

struct PartialRows {
  const float* partials;
  int64_t count, partial_stride, row_stride;  // strides in elements
  float* x;
  int64_t x_stride, width;
  bool add_to_x;
  float scale;
  void* h;  // float or bf16; may be null
  int64_t h_stride;
  bool h_bf16;
};

// Rows [begin, end).
void reduce_avx2(const PartialRows& r, int64_t begin, int64_t end);
void reduce_avx512(const PartialRows& r, int64_t begin, int64_t end);

}  // namespace quire::rows
