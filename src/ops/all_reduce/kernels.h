// Inside all_reduce/: what the vector kernels work on. Plain pointers, so that the files compiled for newer CPUs
// instantiate nothing that others share. bf16 is passed as its bits.
#pragma once

#include <cstdint>

namespace quire::all_reduce_detail {

struct RankRows {
  const void* partials[8];
  int64_t count;
  bool bf16;
  int64_t stride;  // of partials, elements
  float* x;
  int64_t x_stride, width;
  bool add_to_x;
};

// Rows [begin, end).
void sum_avx2(const RankRows& r, int64_t begin, int64_t end);
void sum_avx512(const RankRows& r, int64_t begin, int64_t end);

}  // namespace quire::all_reduce_detail
