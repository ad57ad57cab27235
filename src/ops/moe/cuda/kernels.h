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

// The same as tiles, with tokens that become E4M3 where the weights are FP8 (ops/gemm/cuda/e4m3.h).
bool fits_e4m3(const Machine& m, const MoeArgs& a);
void launch_e4m3(const OpContext& ctx, const MoeArgs& a);

inline constexpr std::string_view kFewTakes =
    "up to 8 tokens and 512 experts, gate, up and down of one type (or Q4_K with Q6_K), shared "
    "memory for "
    "the tokens";
inline constexpr std::string_view kRoutedTakes =
    "bf16, up to 32 of 1024 experts for each token in up to 32 groups, gate and up of one type, widths that are "
    "multiples of 8, no biases beside a shared expert";

inline constexpr std::string_view kE4m3Takes =
    "FP8 weights, tokens that become E4M3, compute capability 9.0, and what cuda_tiles takes";

}  // namespace quire::moe_cuda
