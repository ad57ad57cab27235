#include "ops/norm/cuda/kernels.h"

#include "ops/cuda/arguments.h"
#include "ops/cuda/context.h"
#include "ops/norm/cuda/norm.h"

namespace quire::cuda {

bool add_rms_norm_fits(const Machine&, const AddRmsNormArgs& a) {
  const int64_t rows = a.x.dim(0), columns = a.x.dim(1);
  if (a.x.dtype != DType::kF32 || !is_activation(a.h) || (!a.add.empty() && !is_activation(a.add))) return false;
  if (columns < 1 || rows > INT32_MAX) return false;
  if (columns % 4 != 0) return columns <= 8192;
  return columns <= 32768 && aligned_rows(a.x, 4) && aligned_rows(a.add, 4) && aligned_rows(a.h, 4);
}

void add_rms_norm(const OpContext& ctx, const AddRmsNormArgs& a) {
  Context& c = context_of(ctx);
  if (c.dry) return;
  AddRmsNormParams p{.rows = a.x.dim(0),
                     .D = a.x.dim(1),
                     .x = data<float>(a.x),
                     .x_stride = a.x.stride[0],
                     .weight = floats(a.weight),
                     .eps = a.eps,
                     .h = a.h.data,
                     .h_bf16 = a.h.dtype == DType::kBF16,
                     .h_stride = a.h.stride[0]};
  if (!a.add.empty()) p.add = a.add.data, p.add_bf16 = a.add.dtype == DType::kBF16, p.add_stride = a.add.stride[0];
  c.keep(launch_add_rms_norm(c.stream, p));
}

bool gated_rms_norm_fits(const Machine&, const GatedRmsNormArgs& a) {
  return is_activation(a.o) && a.z.dtype == a.o.dtype && a.y.dtype == a.o.dtype && a.o.dim(2) == 128 &&
         aligned_rows(a.o, 8) && aligned_rows(a.z, 8) && aligned_rows(a.y, 8);
}

void gated_rms_norm(const OpContext& ctx, const GatedRmsNormArgs& a) {
  Context& c = context_of(ctx);
  if (c.dry) return;
  c.keep(launch_gated_rms_norm(c.stream, {.rows = a.o.dim(0),
                                          .Hv = narrow(a.o.dim(1)),
                                          .bf16 = a.o.dtype == DType::kBF16,
                                          .o = a.o.data,
                                          .o_stride = a.o.stride[0],
                                          .z = a.z.data,
                                          .z_stride = a.z.stride[0],
                                          .weight = floats(a.weight),
                                          .eps = a.eps,
                                          .y = a.y.data,
                                          .y_stride = a.y.stride[0]}));
}

}  // namespace quire::cuda
