// Which rows the CUDA kernel of `embed` decodes. No CUDA headers: whoever places a table on a GPU asks, too.
#pragma once

#include "core/dtype.h"

namespace quire::cuda {

// F32, BF16, F16, Q8_0 or NVFP4; the width a multiple of 64 for NVFP4, of 32 for Q8_0, of 8 for the others.
constexpr bool embed_takes(DType dtype, int64_t width) {
  switch (dtype) {
    case DType::kF32:
    case DType::kBF16:
    case DType::kF16:
      return width > 0 && width % 8 == 0;
    case DType::kQ8_0:
      return width > 0 && width % 32 == 0;
    case DType::kNVFP4:
      return width > 0 && width % 64 == 0;
    default:
      return false;
  }
}

}  // namespace quire::cuda
