// gated_product: its checks, its reference, and its table of kernels.
#include "ops/rows/gated.h"

#include <algorithm>

#include "ops/kernel_table.h"
#include "ops/rows/cuda/kernels.h"
#include "ops/rows/rows.h"

namespace quire {
namespace {

// A few microseconds of work: an exponential for each element.
constexpr int64_t kPieceElems = 4096;

void reference(const OpContext&, const GatedProductArgs& a) {
  for (int64_t t = 0; t < a.y.dim(0); ++t)
    for (int64_t i = 0; i < a.y.dim(1); ++i) {
      const double y =
          gated(a.activation, static_cast<double>(a.gate.row<float>(t)[i]), static_cast<double>(a.up.row<float>(t)[i]));
      store_float(a.y, t * a.y.stride[0] + i, static_cast<float>(y));
    }
}

template <auto Rows>
void cpu(const OpContext& ctx, const GatedProductArgs& a) {
  const rows::GatedRows r{.gate = a.gate.as<float>(),
                          .up = a.up.as<float>(),
                          .gate_stride = a.gate.stride[0],
                          .up_stride = a.up.stride[0],
                          .width = a.y.dim(1),
                          .y = a.y.data,
                          .y_stride = a.y.stride[0],
                          .y_bf16 = a.y.dtype == DType::kBF16,
                          .activation = a.activation};
  ctx.pool.parallel_for(a.y.dim(0), std::max<int64_t>(1, kPieceElems / std::max<int64_t>(1, r.width)),
                        [&](int64_t begin, int64_t end, int) { Rows(r, begin, end); });
}

constexpr auto kKernels = joined(  //
    cuda_rows<GatedProductArgs>({
        {"cuda", fits_always<GatedProductArgs>, cuda::gated_product, GpuLevel::kMma},
    }),
    x86_rows<GatedProductArgs>({
        {"avx512", has_avx512<GatedProductArgs>, cpu<rows::gated_product_avx512>, CpuLevel::kAvx512},
    }),
    kernel_rows<GatedProductArgs>({
        {kBaseLevel, fits_always<GatedProductArgs>, cpu<rows::gated_product_avx2>},
        {"reference", fits_always<GatedProductArgs>, reference},
    }));

Traffic traffic_of(const GatedProductArgs& a) {
  return {.bytes = a.gate.bytes() + a.up.bytes() + a.y.bytes(), .flops = a.y.elems() * (kSiluFlops + 1)};
}

std::string describe_args(const GatedProductArgs& a) {
  return fmt::format("gate {}, y {}{}", describe(a.gate), describe(a.y), activation_note(a.activation));
}

}  // namespace

constinit const Operator<GatedProductArgs> kGatedProductOp{"gated_product", kKernels, traffic_of, describe_args};

void gated_product(const OpContext& ctx, const GatedProductArgs& a) {
  Dim T{"T"}, D{"D"};
  expect_shape("gate", a.gate, T, D);
  expect_shape("up", a.up, T, D);
  expect_shape("y", a.y, T, D);
  QUIRE_CHECK(a.gate.dtype == DType::kF32 && a.up.dtype == DType::kF32,
              "gated_product: gate is {} and up is {}, but both are f32", dtype_name(a.gate.dtype),
              dtype_name(a.up.dtype));
  QUIRE_CHECK(a.y.dtype == DType::kF32 || a.y.dtype == DType::kBF16, "gated_product: y is {}, not f32 or bf16",
              dtype_name(a.y.dtype));
  if (T == 0) return;
  dispatch(kGatedProductOp, ctx, a);
}

}  // namespace quire
