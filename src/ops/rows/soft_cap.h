// Inside rows/: what the vector kernels of soft_cap work on, as for reduce.h.
#pragma once

#include <cstdint>

namespace quire::rows {

struct CappedRows {
  float* x;
  int64_t stride, width;
  float cap;
};

// Columns [begin, end) of row t.
void soft_cap_avx2(const CappedRows& r, int64_t t, int64_t begin, int64_t end);
void soft_cap_avx512(const CappedRows& r, int64_t t, int64_t begin, int64_t end);

}  // namespace quire::rows
