// Reference decoders and encoders of tensor rows: one file per family of formats. The decoders are plain
// loops and define what the bytes mean; fast kernels are tested against them. Source: block layouts of the
// ggml type table; blocks run along the contiguous dimension, little-endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "core/result.h"

namespace quire::quant {

// f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, q2_k, q3_k, q4_k, q5_k, q6_k, iq4_nl, iq4_xs, mxfp4, nvfp4, fp8.
bool can_decode(DType type);
// An error of the file, with what to do, if the tensor of this name has another type.
Status check_decodable(std::string_view tensor, DType type);
// The same types but q2_k, iq4_xs and fp8.
bool can_encode(DType type);

// dst[0..elems) = the values of `elems` elements at src, which may be unaligned. elems must be a multiple of
// the block size. NVFP4 values are without the tensor's scale. Blocks with NaN or infinite scales decode to
// what arithmetic gives.
void decode_row(DType type, const std::byte* src, int64_t elems, float* dst);

enum class Search {
  kNearest,  // the plain rule of each format: the scale from the largest magnitude, or from both ends
  kBest,     // scales are searched for the least (weighted) squared error; 10 to 100 times slower
};

struct EncodeOptions {
  Search search = Search::kBest;
  // What an error in each element costs: error = sum of importance[i] * (x[i] - decoded[i])^2. `elems`
  // numbers, not negative, or none for equal costs. kNearest does not look at it.
  std::span<const float> importance = {};
  // NVFP4 only: the factor of the whole tensor, positive. The value of an element is e2m1 * ue4m3 *
  // tensor_scale.
  float tensor_scale = 1;
};

// dtype_bytes(type, elems) bytes at dst. Inputs should be finite: what a NaN or an infinity does to its block
// is not defined beyond not being an error. Block scales that are stored as half are always finite: larger
// values saturate. The same input gives the same bytes.
void encode_row(DType type, const float* src, int64_t elems, const EncodeOptions& options, std::byte* dst);
// The plain rule: quick, and enough for tests and random weights.
inline void encode_row(DType type, const float* src, int64_t elems, std::byte* dst) {
  encode_row(type, src, elems, {.search = Search::kNearest}, dst);
}

// Sum of importance[i] * (x[i] - y[i])^2, each factor 1 if there are none.
double squared_error(const float* x, const float* y, int64_t elems, std::span<const float> importance);

// Two-level NVFP4: a float32 scale for the whole tensor (or for each expert), so that block scales use their
// full range; stored as the tensor "<name>.scale". max|x| / (6 * 448); 1 if all are zero. An error if any
// element is NaN or infinite.
Result<float> nvfp4_tensor_scale(const float* src, int64_t elems);
// Factors in [1, 2) on that scale, the first 1. Block scales are a grid with steps of 6 to 12%; each factor
// shifts the grid against the data. Twice the scale is the same grid.
std::span<const float> nvfp4_scale_factors();

}  // namespace quire::quant
