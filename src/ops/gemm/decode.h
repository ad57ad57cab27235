// Weights decoded to float32, exactly: the way into every kernel that has no faster decoder for a format.
#pragma once

#include "ops/op.h"

namespace quire::gemm {

// out[0, count) = W[row][begin, begin + count) without the tensor's scale. `begin` and `count` are multiples
// of the format's block.
void decode_f32(const Weight& w, int64_t expert, int64_t row, int64_t begin, int64_t count, float* out);

}  // namespace quire::gemm
