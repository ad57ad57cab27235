// layer_norm: its checks, its reference, and the table of its kernels.
#include "ops/layer_norm/layer_norm.h"

#include <cmath>

#include "ops/kernel_table.h"
#include "ops/layer_norm/cuda/kernels.h"
#include "ops/layer_norm/kernels.h"

namespace quire {
namespace {

using layer_norm_detail::Rows;

// Rows per piece of work: a few microseconds, so that handing out costs little.
constexpr int64_t kGrain = 8;

void expect_activation(std::string_view name, const Tensor& t) {
  QUIRE_CHECK(t.dtype == DType::kF32 || t.dtype == DType::kBF16, "{}: is {}, but f32 or bf16 is required", name,
              dtype_name(t.dtype));
  QUIRE_CHECK(t.stride[1] == 1, "{}: rows must be contiguous", name);
}

void check(const LayerNormArgs& a) {
  Dim rows{"T"}, width{"D"};
  expect_shape("x", a.x, rows, width);
  expect_shape("h", a.h, rows, width);
  if (!a.add.empty()) {
    expect_shape("add", a.add, rows, width);
    expect_activation("add", a.add);
  }
  for (const Tensor* t : {&a.weight, &a.bias}) {
    expect_shape(t == &a.weight ? "weight" : "bias", *t, width);
    QUIRE_CHECK(t->dtype == DType::kF32 && t->stride[0] == 1, "weight, bias: must be f32 and contiguous");
  }
  QUIRE_CHECK(a.x.dtype == DType::kF32 && a.x.stride[1] == 1, "x: must be f32 with contiguous rows");
  expect_activation("h", a.h);
}

template <auto Kernel>
void run(const OpContext& ctx, const LayerNormArgs& a) {
  check(a);
  const Rows r{.x = a.x.as<float>(),
               .add = a.add.data,
               .weight = a.weight.as<float>(),
               .bias = a.bias.as<float>(),
               .h = a.h.data,
               .add_bf16 = a.add.dtype == DType::kBF16,
               .h_bf16 = a.h.dtype == DType::kBF16,
               .x_stride = a.x.stride[0],
               .add_stride = a.add.stride[0],
               .h_stride = a.h.stride[0],
               .width = a.x.dim(1),
               .eps = a.eps};
  ctx.pool.parallel_for(a.x.dim(0), kGrain, [&](int64_t begin, int64_t end, int) { Kernel(r, begin, end); });
}

void reference_row(const LayerNormArgs& a, int64_t t) {
  const int64_t width = a.x.dim(1);
  float* const x = a.x.row<float>(t);
  double sum = 0.0, squares = 0.0;
  for (int64_t i = 0; i < width; ++i) {
    if (!a.add.empty()) x[i] += load_float(a.add, t * a.add.stride[0] + i);
    sum += static_cast<double>(x[i]);
  }
  const double mean = sum / static_cast<double>(width);
  for (int64_t i = 0; i < width; ++i) {
    const double d = static_cast<double>(x[i]) - mean;
    squares += d * d;
  }
  const double scale = 1.0 / std::sqrt(squares / static_cast<double>(width) + static_cast<double>(a.eps));
  for (int64_t i = 0; i < width; ++i) {
    const double normed = (static_cast<double>(x[i]) - mean) * scale;
    const auto weight = static_cast<double>(a.weight.as<float>()[i]), bias = static_cast<double>(a.bias.as<float>()[i]);
    store_float(a.h, t * a.h.stride[0] + i, static_cast<float>(normed * weight + bias));
  }
}

void reference(const OpContext& ctx, const LayerNormArgs& a) {
  check(a);
  ctx.pool.parallel_for(a.x.dim(0), kGrain, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) reference_row(a, t);
  });
}

constexpr auto kKernels = joined(  //
    cuda_rows<LayerNormArgs>({
        {"cuda", cuda::layer_norm_fits, cuda::layer_norm, GpuLevel::kMma, nullptr, cuda::kLayerNormTakes},
    }),
    x86_rows<LayerNormArgs>({
        {"avx512", has_avx512<LayerNormArgs>, run<layer_norm_detail::rows_avx512>, CpuLevel::kAvx512},
    }),
    kernel_rows<LayerNormArgs>({
        {kBaseLevel, fits_always<LayerNormArgs>, run<layer_norm_detail::rows_avx2>},
        {"reference", fits_always<LayerNormArgs>, reference},
    }));

Traffic traffic_of(const LayerNormArgs& a) {
  const bool adds = !a.add.empty();
  return {.bytes = a.x.bytes() * (adds ? 2 : 1) + a.add.bytes() + a.weight.bytes() + a.bias.bytes() + a.h.bytes(),
          .flops = a.x.elems() * (adds ? 8 : 7)};
}

std::string describe_args(const LayerNormArgs& a) {
  return fmt::format("x {}, add {}, h {}", describe(a.x), describe(a.add), describe(a.h));
}

}  // namespace

constinit const Operator<LayerNormArgs> kLayerNormOp{"layer_norm", kKernels, traffic_of, describe_args};

void layer_norm(const OpContext& ctx, const LayerNormArgs& a) {
  dispatch(kLayerNormOp, ctx, a);
}

}  // namespace quire
