#include "ops/all_reduce/cuda/kernels.h"

#include "ops/all_reduce/cuda/all_reduce.h"
#include "ops/all_reduce/cuda/peers.h"
#include "ops/cuda/arguments.h"
#include "ops/cuda/context.h"

namespace quire::cuda {

bool all_reduce_fits(const Machine&, const AllReduceArgs& a) {
  const int64_t columns = a.x.dim(1);
  const Tensor& partial = a.partials[static_cast<size_t>(a.own())];
  return columns >= 4 && columns <= kAllReduceColumns && columns % 4 == 0 && aligned_rows(partial, 4) &&
         aligned_rows(a.x, 4) && aligned_rows(a.h, 4);
}

void all_reduce(const OpContext& ctx, const AllReduceArgs& a) {
  Context& c = context_of(ctx);
  if (c.dry) return;
  const Tensor& first = a.partials[0];
  AllReduceParams p{.rows = a.x.dim(0),
                    .D = a.x.dim(1),
                    .partials = {},
                    .count = a.count,
                    .partial_bf16 = first.dtype == DType::kBF16,
                    .partial_stride = first.stride[0],
                    .x = data<float>(a.x),
                    .x_stride = a.x.stride[0],
                    .add_to_x = a.add_to_x,
                    .weight = floats(a.weight),
                    .eps = a.eps,
                    .h = a.h.data,
                    .h_bf16 = a.h.dtype == DType::kBF16,
                    .h_stride = a.h.stride[0],
                    .meeting = {}};
  for (size_t r = 0; r < static_cast<size_t>(a.count); ++r) p.partials[r] = a.partials[r].data;
  if (a.link != nullptr) p.meeting = static_cast<PeerLink*>(a.link)->meeting();
  c.keep(launch_all_reduce(c.stream, p));
}

}  // namespace quire::cuda
