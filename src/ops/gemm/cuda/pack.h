// From the bytes of a file to packed tiles, on the device, and back for tests.
#pragma once

#include <cuda_runtime_api.h>

#include "core/result.h"
#include "ops/gemm/cuda/packed.h"

namespace quire::gemm {

struct PackParams {
  DType dtype = DType::kF32;           // of the source: any type that quant::can_decode
  const std::byte* source = nullptr;   // device: experts x rows rows as in the file, each dtype_bytes(dtype, cols)
  const std::byte* source2 = nullptr;  // device: the up matrices if the destination is paired, else null
  int64_t source_expert_rows = 0;      // rows from one expert to the next in the source; 0: rows
  int32_t rows = 0;                    // of one expert, in the source
  int32_t cols = 0;                    // a multiple of the type's block
  int32_t experts = 1;
  std::byte* packed = nullptr;  // device, aligned to 16 bytes: where `destination` begins
  PackedWeight destination;     // its format must be tile_format(dtype); cols as here; `data` is not looked at
  int32_t first_row_tile = 0;   // destination tile of source row 0
  int32_t first_expert = 0;     // destination expert of source expert 0
};

// Enqueues the packing of `experts` x `rows` rows into the destination's tiles from (first_expert, first_row_tile) on;
// the last tile's missing rows become zeros. Fault::kBug if the shapes do not fit each other.
Status launch_pack(cudaStream_t stream, const PackParams& p);

struct UnpackParams {
  PackedWeight weight;
  int32_t expert = 0;
  int32_t second = 0;    // paired: 0 gate, 1 up
  float* out = nullptr;  // device [rows, cols]
};

// What the products multiply by, as float32 (NVFP4 without the tensor's scale).
Status launch_unpack(cudaStream_t stream, const UnpackParams& p);

}  // namespace quire::gemm
