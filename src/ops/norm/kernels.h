// Inside norm/: what the vector kernels work on. Plain pointers, so that the files compiled for newer CPUs
// instantiate nothing that others share. bf16 is passed as its bits.
#pragma once

#include <cstdint>

namespace quire::norm {

struct AddRmsNormRows {
  float* x;
  const void* add;  // null: nothing is added
  const float* weight;
  void* h;
  bool add_bf16, h_bf16;
  int64_t x_stride, add_stride, h_stride;  // elements
  int64_t D;
  float eps;
};
struct GatedRmsNormRows {
  const void *o, *z;
  const float* weight;
  void* y;
  bool bf16;
  int64_t o_stride, z_stride, y_stride;  // elements
  int64_t Hv, Dv;
  float eps;
};

// Rows [begin, end).
void add_rms_norm_avx2(const AddRmsNormRows& r, int64_t begin, int64_t end);
void add_rms_norm_avx512(const AddRmsNormRows& r, int64_t begin, int64_t end);
void gated_rms_norm_avx2(const GatedRmsNormRows& r, int64_t begin, int64_t end);
void gated_rms_norm_avx512(const GatedRmsNormRows& r, int64_t begin, int64_t end);

}  // namespace quire::norm
