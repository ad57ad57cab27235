#include "ops/gemm/decode_avx512.h"

#include "ops/gemm/formats_avx512.h"

namespace quire::gemm {

DecodeTiles find_decoder(DType type) {
  return decoder_of(type);
}

}  // namespace quire::gemm
