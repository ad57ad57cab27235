// Reading operators' arguments for the launches of their CUDA kernels.
#pragma once

#include <cuda_bf16.h>

#include "ops/op.h"

namespace quire::cuda {

template <class T>
T* data(const Tensor& t) {
  return static_cast<T*>(t.data);
}
inline const float* floats(const Tensor& t) {
  return static_cast<const float*>(t.data);
}
inline int32_t narrow(int64_t n) {
  return static_cast<int32_t>(n);
}
inline bool is_activation(const Tensor& t) {
  return t.dtype == DType::kF32 || t.dtype == DType::kBF16;
}
// Rows whose beginnings are a multiple of so many elements apart; an empty tensor has none.
inline bool aligned_rows(const Tensor& t, int64_t elems) {
  return t.empty() || t.stride[0] % elems == 0;
}

// The same, and the first row begins at such a multiple, too: where operands are views of any columns. For launches, as
// `fits` looks at no address.
inline bool aligned_elements(const Tensor& t, int64_t elems) {
  return aligned_rows(t, elems) && reinterpret_cast<uintptr_t>(t.data) % (elems * dtype_bytes(t.dtype, 1)) == 0;
}

}  // namespace quire::cuda
