// What tokens become before weights of few bits are multiplied with them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "ops/op.h"

namespace quire {

enum class TokenRounding : uint8_t {
  kNone,
  kE4m3,  // beside FP8 weights (ops/gemm/e4m3_tokens.h)
  kFp4,   // beside NVFP4 and MXFP4 weights (ops/gemm/fp4_tokens.h)
};

// Of a call: the last rows, and what they become. Weights of types that this is not for take no notice.
struct RoundedTokens {
  int64_t rows = 0;
  TokenRounding to = TokenRounding::kNone;

  constexpr bool are(TokenRounding type) const { return rows > 0 && to == type; }
};

namespace gemm {

// Whether tokens become that beside weights of a type.
constexpr bool rounds_beside(TokenRounding tokens, DType weight) {
  switch (tokens) {
    case TokenRounding::kNone:
      return false;
    case TokenRounding::kE4m3:
      return weight == DType::kFP8;
    case TokenRounding::kFp4:
      return weight == DType::kNVFP4 || weight == DType::kMXFP4;
  }
  return false;
}

// None where none of these weights is of a type that they are for: the call need not be split then.
inline RoundedTokens rounded_beside(std::initializer_list<const Weight*> weights, const RoundedTokens& tokens) {
  const bool any =
      std::any_of(weights.begin(), weights.end(), [&](const Weight* w) { return rounds_beside(tokens.to, w->dtype); });
  return any ? tokens : RoundedTokens{};
}

// For a call's description.
constexpr std::string_view note(const RoundedTokens& tokens) {
  return tokens.are(TokenRounding::kE4m3)  ? ", tokens in e4m3"
         : tokens.are(TokenRounding::kFp4) ? ", tokens in fp4"
                                           : "";
}

}  // namespace gemm
}  // namespace quire
