// The CUDA kernel in the table of vision_attention.
#pragma once

#include "ops/vision_attention/vision_attention.h"

namespace quire::cuda {

bool vision_attention_fits(const Machine& m, const VisionAttentionArgs& a);
void vision_attention(const OpContext& ctx, const VisionAttentionArgs& a);

inline constexpr std::string_view kVisionAttentionTakes =
    "bf16, heads of up to 512, rows aligned to 8 elements, a positive scale";

}  // namespace quire::cuda
