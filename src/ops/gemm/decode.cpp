#include "ops/gemm/decode.h"

#include "quant/format.h"

namespace quire::gemm {

void decode_f32(const Weight& w, int64_t expert, int64_t row, int64_t begin, int64_t count, float* out) {
  quant::decode_row(w.dtype, w.row(row, expert) + dtype_bytes(w.dtype, begin), count, out);
}

}  // namespace quire::gemm
