#include "ops/gemm/decode.h"

#include <cstring>

namespace quire::gemm {

void decode_f32(const Weight& w, int64_t expert, int64_t row, int64_t begin, int64_t count, float* out) {
  const std::byte* src = w.row(row, expert) + dtype_bytes(w.dtype, begin);
  switch (w.dtype) {
    case DType::kF32:
      std::memcpy(out, src, static_cast<size_t>(count) * sizeof(float));
      return;
    case DType::kBF16:
      for (int64_t i = 0; i < count; ++i) {
        bf16 v;
        std::memcpy(&v, src + 2 * i, 2);
        out[i] = to_float(v);
      }
      return;
    default:
      QUIRE_CHECK(false, "no decoder for {}", dtype_name(w.dtype));
  }
}

}  // namespace quire::gemm
