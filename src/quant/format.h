// Reference decoders and encoders of tensor rows: plain loops, one file per family of formats. They define
// what the bytes mean; fast kernels are tested against them. Source: block layouts of the ggml type table;
// blocks run along the contiguous dimension, little-endian.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"
#include "core/result.h"

namespace quire::quant {

// f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, q4_k, q5_k, q6_k, mxfp4, nvfp4.
bool can_decode(DType type);
// f32, f16, bf16, q8_0, q4_0, mxfp4, nvfp4 (one level: without a tensor scale).
bool can_encode(DType type);

// dst[0..elems) = the values of `elems` elements at src, which may be unaligned. elems must be a multiple of
// the block size. NVFP4 values are without the tensor's scale. Blocks with NaN or infinite scales decode to
// what arithmetic gives.
void decode_row(DType type, const std::byte* src, int64_t elems, float* dst);

// The inverse: dtype_bytes(type, elems) bytes at dst. Inputs should be finite: what a NaN or an infinity does
// to its block is not defined beyond not being an error.
void encode_row(DType type, const float* src, int64_t elems, std::byte* dst);

// Two-level NVFP4: a float32 scale for the whole tensor (or for each expert), so that block scales use their
// full range. The value of an element is e2m1 * ue4m3 * tensor_scale; the scale is stored as the tensor
// "<name>.scale". max|x| / (6 * 448); 1 if all are zero. An error if any element is NaN or infinite.
Result<float> nvfp4_tensor_scale(const float* src, int64_t elems);
// For each block scale, tries the nearest code and its neighbours up to two away and keeps the least squared
// error. tensor_scale must be positive. elems % 64 == 0.
void encode_nvfp4_scaled(const float* src, int64_t elems, float tensor_scale, std::byte* dst);

}  // namespace quire::quant
