// The CUDA kernels in the tables of embed, gather_rows, reduce_partials, soft_cap and gated_product.
#pragma once

#include "ops/rows/rows.h"

namespace quire::cuda {

bool embed_fits(const Machine& m, const EmbedArgs& a);
void embed(const OpContext& ctx, const EmbedArgs& a);
void gather_rows(const OpContext& ctx, const GatherRowsArgs& a);
void reduce_partials(const OpContext& ctx, const ReducePartialsArgs& a);
bool soft_cap_fits(const Machine& m, const SoftCapArgs& a);
void soft_cap(const OpContext& ctx, const SoftCapArgs& a);
void gated_product(const OpContext& ctx, const GatedProductArgs& a);

inline constexpr std::string_view kEmbedTakes =
    "a table of F32, BF16 or F16 with a multiple of 8 columns, Q8_0 of 32 or NVFP4 of 64, and contiguous "
    "rows of x";
inline constexpr std::string_view kSoftCapTakes = "up to 2^22 columns";

}  // namespace quire::cuda
