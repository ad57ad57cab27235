#include "ops/copy/cuda/kernels.h"

#include "ops/copy/cuda/copy.h"
#include "ops/cuda/arguments.h"
#include "ops/cuda/context.h"

namespace quire::cuda {
namespace {

int64_t slot_bytes(const Tensor& pool) {
  return pool.dim(0) == 0 ? 0 : dtype_bytes(pool.dtype, pool.elems() / pool.dim(0));
}
int64_t slot_stride(const Tensor& pool) {
  return dtype_bytes(pool.dtype, pool.stride[0]);
}

}  // namespace

// A model without recurrent states has a pool without slots, and no pairs.
bool copy_slots_fits(const Machine&, const CopySlotsArgs& a) {
  if (a.pairs.dim(0) == 0) return true;
  return slot_bytes(a.pool) % 16 == 0 && slot_stride(a.pool) % 16 == 0;
}

void copy_slots(const OpContext& ctx, const CopySlotsArgs& a) {
  Context& c = context_of(ctx);
  if (c.dry || a.pairs.dim(0) == 0) return;
  c.keep(launch_copy_slots(c.stream, {.pool = a.pool.data,
                                      .slot_bytes = slot_bytes(a.pool),
                                      .slot_stride = slot_stride(a.pool),
                                      .pairs = data<int32_t>(a.pairs),
                                      .count = narrow(a.pairs.dim(0))}));
}

}  // namespace quire::cuda
