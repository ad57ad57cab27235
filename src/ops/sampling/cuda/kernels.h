// The CUDA kernels in the tables of sample and update_history.
#pragma once

#include "ops/sampling/history.h"
#include "ops/sampling/sampling.h"

namespace quire::cuda {

bool sample_fits(const Machine& m, const SampleArgs& a);
void sample(const OpContext& ctx, const SampleArgs& a);
void update_history(const OpContext& ctx, const UpdateHistoryArgs& a);

inline constexpr std::string_view kSampleTakes =
    "vocabularies of up to 1048576 tokens, rows aligned to 4 logits, up to 1024 alternatives";

}  // namespace quire::cuda
