// Products with tokens that are rounded first, of either kind: what linear, swiglu_mlp and moe launch where they are
// asked for it.
#pragma once

#include "ops/gemm/cuda/e4m3.h"
#include "ops/gemm/cuda/fp4.h"
#include "ops/gemm/token_rounding.h"

namespace quire::gemm {

inline bool takes_rounded(TokenRounding tokens, const Product& p, const cuda::DeviceLimits& device) {
  return tokens == TokenRounding::kE4m3 ? takes_e4m3(p, device) : tokens == TokenRounding::kFp4 && takes_fp4(p, device);
}
inline int64_t rounded_bytes(TokenRounding tokens, const Product& p) {
  return tokens == TokenRounding::kE4m3 ? e4m3_bytes(p) : fp4_bytes(p);
}
inline Status launch_rounded(cudaStream_t stream, TokenRounding tokens, const Product& p, std::byte* room) {
  return tokens == TokenRounding::kE4m3 ? launch_e4m3(stream, p, room) : launch_fp4(stream, p, room);
}

}  // namespace quire::gemm
