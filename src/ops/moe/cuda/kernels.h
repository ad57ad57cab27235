// The CUDA kernels in moe's table.
#pragma once

#include "ops/moe/moe.h"

namespace quire::moe_cuda {

// Everything after the router's product in one kernel, for up to eight tokens.
bool fits_few(const Machine& m, const MoeArgs& a);
void launch_few(const OpContext& ctx, const MoeArgs& a);
// Tokens sorted by expert, and products grouped by it: as tiles, or as streams, for few tokens of an expert.
bool fits_routed(const Machine& m, const MoeArgs& a);
bool prefers_tiles(const Machine& m, const MoeArgs& a);
void launch_tiles(const OpContext& ctx, const MoeArgs& a);
void launch_stream(const OpContext& ctx, const MoeArgs& a);

// The same as tiles, with tokens that are rounded beside such weights (ops/gemm/cuda/rounded.h).
bool fits_rounded(const Machine& m, const MoeArgs& a, TokenRounding tokens);
void launch_rounded(const OpContext& ctx, const MoeArgs& a, TokenRounding tokens);

template <TokenRounding kTokens>
struct RoundedEntry {
  static bool fits(const Machine& m, const MoeArgs& a) { return fits_rounded(m, a, kTokens); }
  static void launch(const OpContext& ctx, const MoeArgs& a) { launch_rounded(ctx, a, kTokens); }
};

inline constexpr std::string_view kFewTakes =
    "up to 8 tokens and 512 experts, gate, up and down of one type (or Q4_K with Q6_K), shared "
    "memory for "
    "the tokens";
inline constexpr std::string_view kRoutedTakes =
    "bf16, all experts here, up to 32 of 1024 experts for each token in up to 32 groups, gate and up of one type, "
    "widths that are "
    "multiples of 8, no biases beside a shared expert";

inline constexpr std::string_view kE4m3Takes =
    "FP8 weights, tokens that become E4M3, compute capability 9.0, and what cuda_tiles takes";
inline constexpr std::string_view kFp4Takes =
    "NVFP4 or MXFP4 weights, tokens that become FP4, compute capability 12.x, and what cuda_tiles takes";

}  // namespace quire::moe_cuda
