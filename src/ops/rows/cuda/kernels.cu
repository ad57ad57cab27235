#include "ops/rows/cuda/kernels.h"

#include "ops/cuda/arguments.h"
#include "ops/cuda/context.h"
#include "ops/rows/cuda/rows.h"

namespace quire::cuda {

bool embed_fits(const Machine&, const EmbedArgs& a) {
  return embed_takes(a.table.dtype, a.table.cols) && a.table.rows > 0 && a.x.dtype == DType::kF32 &&
         a.x.stride[0] == a.x.dim(1);
}

void embed(const OpContext& ctx, const EmbedArgs& a) {
  Context& c = context_of(ctx);
  if (c.dry) return;
  const bool sources = !a.sources.empty();
  c.keep(launch_embed(c.stream, {.tokens = data<int32_t>(a.tokens),
                                 .sources = sources ? data<int32_t>(a.sources) : nullptr,
                                 .sampled = sources ? data<int32_t>(a.sampled) : nullptr,
                                 .dtype = a.table.dtype,
                                 .table = a.table.data,
                                 .scale = a.table.scale_of(),
                                 .rows = narrow(a.x.dim(0)),
                                 .vocab = narrow(a.table.rows),
                                 .width = narrow(a.table.cols),
                                 .x = data<float>(a.x)}));
}

void gather_rows(const OpContext& ctx, const GatherRowsArgs& a) {
  Context& c = context_of(ctx);
  if (c.dry) return;
  const int64_t row = dtype_bytes(a.x.dtype, 1);
  c.keep(launch_gather_rows(c.stream, {.x = a.x.data,
                                       .rows = data<int32_t>(a.rows),
                                       .y = a.y.data,
                                       .count = narrow(a.y.dim(0)),
                                       .x_rows = narrow(a.x.dim(0)),
                                       .row_bytes = a.y.dim(1) * row,
                                       .x_stride = a.x.stride[0] * row,
                                       .y_stride = a.y.stride[0] * row,
                                       .add_to_y = a.add_to_y}));
}

void reduce_partials(const OpContext& ctx, const ReducePartialsArgs& a) {
  Context& c = context_of(ctx);
  if (c.dry) return;
  c.keep(launch_reduce_partials(c.stream, {.partials = floats(a.partials),
                                           .count = narrow(a.partials.dim(0)),
                                           .partial_stride = a.partials.stride[0],
                                           .row_stride = a.partials.stride[1],
                                           .x = data<float>(a.x),
                                           .x_stride = a.x.stride[0],
                                           .rows = narrow(a.x.dim(0)),
                                           .width = narrow(a.x.dim(1)),
                                           .add_to_x = a.add_to_x,
                                           .scale = a.scale,
                                           .h = a.h.data,
                                           .h_stride = a.h.stride[0],
                                           .h_bf16 = a.h.dtype == DType::kBF16}));
}

bool soft_cap_fits(const Machine&, const SoftCapArgs& a) {
  return a.x.dim(1) <= 1 << 22;  // blocks for the columns of a row, one element a thread
}

void soft_cap(const OpContext& ctx, const SoftCapArgs& a) {
  Context& c = context_of(ctx);
  if (c.dry) return;
  c.keep(launch_soft_cap(c.stream, {.x = data<float>(a.x),
                                    .x_stride = a.x.stride[0],
                                    .rows = narrow(a.x.dim(0)),
                                    .width = narrow(a.x.dim(1)),
                                    .cap = a.cap}));
}

void gated_product(const OpContext& ctx, const GatedProductArgs& a) {
  Context& c = context_of(ctx);
  if (c.dry) return;
  c.keep(launch_gated_product(c.stream, {.gate = floats(a.gate),
                                         .up = floats(a.up),
                                         .gate_stride = a.gate.stride[0],
                                         .up_stride = a.up.stride[0],
                                         .y = a.y.data,
                                         .y_stride = a.y.stride[0],
                                         .y_bf16 = a.y.dtype == DType::kBF16,
                                         .rows = narrow(a.y.dim(0)),
                                         .width = narrow(a.y.dim(1)),
                                         .activation = a.activation}));
}

}  // namespace quire::cuda
