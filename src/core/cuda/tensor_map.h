// Descriptors of matrices for the tensor copy engine of sm_90 and newer.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "core/cuda/check.h"

namespace quire::cuda {

// A matrix of bf16 in device memory, copied in boxes of `box_rows` rows (at most 256) of 64 columns, which land as rows
// of 128 bytes whose eight pieces of 16 bytes are exchanged by the row's number modulo 8; what lies outside the matrix
// becomes zeros. base and row_bytes are multiples of 16. Made on the host, passed to kernels by value.
inline Result<CUtensorMap> tensor_map_bf16(const void* base, int64_t rows, int64_t cols, int64_t row_bytes,
                                           int box_rows) {
  // The driver's library is not linked: a program must start where there is none.
  static const auto encode = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found) !=
            cudaSuccess ||
        found != cudaDriverEntryPointSuccess)
      entry = nullptr;
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(entry);
  }();
  if (encode == nullptr) return Error{Fault::kBug, "the driver has no cuTensorMapEncodeTiled"};
  const cuuint64_t size[2] = {static_cast<cuuint64_t>(cols), static_cast<cuuint64_t>(rows)};
  const cuuint64_t stride[1] = {static_cast<cuuint64_t>(row_bytes)};
  const cuuint32_t box[2] = {64, static_cast<cuuint32_t>(box_rows)}, step[2] = {1, 1};
  CUtensorMap map;
  const CUresult code = encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(base), size, stride, box,
                               step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (code != CUDA_SUCCESS)
    return Error{Fault::kBug, fmt::format("cuTensorMapEncodeTiled: error {} for {} x {}, rows {} bytes apart",
                                          static_cast<int>(code), rows, cols, row_bytes)};
  return map;
}

}  // namespace quire::cuda
