// gelu: its checks, its reference, and the table of its kernels.
#include "ops/gelu/gelu.h"

#include <cmath>

#include "ops/gelu/cuda/kernels.h"
#include "ops/gelu/kernels.h"
#include "ops/gemm/activation.h"
#include "ops/kernel_table.h"

namespace quire {
namespace {

constexpr int64_t kGrain = 4;  // rows per piece of work: thousands of elements each
constexpr int64_t kGeluFlops = kSiluFlops + 5;

void check(const GeluArgs& a) {
  Dim rows{"T"}, width{"D"};
  expect_shape("x", a.x, rows, width);
  expect_shape("y", a.y, rows, width);
  for (const Tensor* t : {&a.x, &a.y}) {
    QUIRE_CHECK(t->dtype == DType::kF32 || t->dtype == DType::kBF16, "x, y: f32 or bf16 is required, not {}",
                dtype_name(t->dtype));
    QUIRE_CHECK(t->stride[1] == 1, "x, y: rows must be contiguous");
  }
  QUIRE_CHECK(a.x.data != a.y.data || (a.x.dtype == a.y.dtype && a.x.stride == a.y.stride),
              "x, y: in place they must be one view");
}

template <auto Kernel>
void run(const OpContext& ctx, const GeluArgs& a) {
  check(a);
  const gelu_detail::Rows r{.x = a.x.data,
                            .y = a.y.data,
                            .x_bf16 = a.x.dtype == DType::kBF16,
                            .y_bf16 = a.y.dtype == DType::kBF16,
                            .erf = a.form == GeluForm::kErf,
                            .x_stride = a.x.stride[0],
                            .y_stride = a.y.stride[0],
                            .width = a.x.dim(1)};
  ctx.pool.parallel_for(a.x.dim(0), kGrain, [&](int64_t begin, int64_t end, int) { Kernel(r, begin, end); });
}

double value_of(GeluForm form, double x) {
  if (form == GeluForm::kTanh) return gated(GateActivation::kGeluTanh, x, 1.0);
  return 0.5 * x * std::erfc(-x * 0.70710678118654752440);
}

void reference(const OpContext& ctx, const GeluArgs& a) {
  check(a);
  ctx.pool.parallel_for(a.x.dim(0), kGrain, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t)
      for (int64_t i = 0; i < a.x.dim(1); ++i)
        store_float(a.y, t * a.y.stride[0] + i,
                    static_cast<float>(value_of(a.form, static_cast<double>(load_float(a.x, t * a.x.stride[0] + i)))));
  });
}

constexpr auto kKernels = joined(  //
    cuda_rows<GeluArgs>({
        {"cuda", cuda::gelu_fits, cuda::gelu, GpuLevel::kMma, nullptr, cuda::kGeluTakes},
    }),
    x86_rows<GeluArgs>({
        {"avx512", has_avx512<GeluArgs>, run<gelu_detail::rows_avx512>, CpuLevel::kAvx512},
    }),
    kernel_rows<GeluArgs>({
        {kBaseLevel, fits_always<GeluArgs>, run<gelu_detail::rows_avx2>},
        {"reference", fits_always<GeluArgs>, reference},
    }));

Traffic traffic_of(const GeluArgs& a) {
  return {.bytes = a.x.bytes() + a.y.bytes(), .flops = a.x.elems() * kGeluFlops};
}

std::string describe_args(const GeluArgs& a) {
  return fmt::format("x {}, y {}{}", describe(a.x), describe(a.y), a.form == GeluForm::kErf ? ", erf" : ", tanh");
}

}  // namespace

constinit const Operator<GeluArgs> kGeluOp{"gelu", kKernels, traffic_of, describe_args};

void gelu(const OpContext& ctx, const GeluArgs& a) {
  dispatch(kGeluOp, ctx, a);
}

}  // namespace quire
