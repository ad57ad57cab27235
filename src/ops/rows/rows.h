// Moving rows: token embedding and the gathering of the rows that need logits.
#pragma once

#include "ops/op.h"

namespace quire {

// x[r] = scale * table[tokens[r]].  tokens [T] (each in [0, V));  table [V, D] any decodable type;  x [T, D]
// f32.
struct EmbedArgs {
  std::span<const int32_t> tokens;
  Weight table;
  Tensor x;
};
void embed(const OpContext& ctx, const EmbedArgs& a);
std::span<const Kernel<EmbedArgs>> embed_kernels();

// y[i] = x[rows[i]].  x [T, D], y [R, D] of the same type (f32 or bf16).
struct GatherRowsArgs {
  Tensor x;
  std::span<const int32_t> rows;
  Tensor y;
};
void gather_rows(const OpContext& ctx, const GatherRowsArgs& a);
std::span<const Kernel<GatherRowsArgs>> gather_rows_kernels();

}  // namespace quire
