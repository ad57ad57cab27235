// The CUDA kernels in the tables of embed, gather_rows and reduce_partials.
#pragma once

#include "ops/rows/rows.h"

namespace quire::cuda {

bool embed_fits(const Machine& m, const EmbedArgs& a);
void embed(const OpContext& ctx, const EmbedArgs& a);
void gather_rows(const OpContext& ctx, const GatherRowsArgs& a);
bool reduce_partials_fits(const Machine& m, const ReducePartialsArgs& a);
void reduce_partials(const OpContext& ctx, const ReducePartialsArgs& a);

inline constexpr std::string_view kEmbedTakes =
    "a table of F32, BF16 or F16 with a multiple of 8 columns, Q8_0 of 32 or NVFP4 of 64, and contiguous "
    "rows of x";
inline constexpr std::string_view kReducePartialsTakes = "sums as they are, without a scale";

}  // namespace quire::cuda
