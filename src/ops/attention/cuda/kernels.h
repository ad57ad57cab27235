// The CUDA kernels in the tables of attention_prepare and paged_attention.
#pragma once

#include "ops/attention/attention.h"

namespace quire::cuda {

bool attention_prepare_fits(const Machine& m, const AttentionPrepareArgs& a);
void attention_prepare(const OpContext& ctx, const AttentionPrepareArgs& a);

// Generated tokens by one kernel (and another that adds its parts), and prompt chunks by wgmma or by mma.sync. Code for
// sm_90a has the first only, other code the second. Heads of 512 have a kernel of their own for prompts, by mma.sync on
// every card.
bool attention_wgmma_fits(const Machine& m, const PagedAttentionArgs& a);
void attention_wgmma(const OpContext& ctx, const PagedAttentionArgs& a);
bool attention_mma_fits(const Machine& m, const PagedAttentionArgs& a);
void attention_mma(const OpContext& ctx, const PagedAttentionArgs& a);
bool attention_wide_fits(const Machine& m, const PagedAttentionArgs& a);
void attention_wide(const OpContext& ctx, const PagedAttentionArgs& a);

inline constexpr std::string_view kAttentionPrepareTakes = "bf16, heads of 64, 128, 256 and 512, KV of bf16 or E4M3";
inline constexpr std::string_view kAttentionWgmmaTakes =
    "compute capability 9.0; bf16, heads of 64, 128 and 256, KV of bf16 or E4M3, up to 4096 sequences";
inline constexpr std::string_view kAttentionMmaTakes =
    "bf16, heads of 64, 128 and 256, KV of bf16, up to 4096 sequences";
inline constexpr std::string_view kAttentionWideTakes =
    "bf16, heads of 512, KV of bf16 or (compute capability 9.0) E4M3, up to 4096 sequences";

}  // namespace quire::cuda
