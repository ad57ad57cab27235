// scale_clamp: its checks, its reference, and the table of its kernels.
#include "ops/scale_clamp/scale_clamp.h"

#include "ops/kernel_table.h"
#include "ops/scale_clamp/cuda/kernels.h"
#include "ops/scale_clamp/kernels.h"

namespace quire {
namespace {

constexpr int64_t kGrain = 8;  // rows per piece of work

void check(const ScaleClampArgs& a) {
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
  QUIRE_CHECK(a.shift.empty() == a.scale.empty(), "shift, scale: both or neither");
  QUIRE_CHECK(a.low <= a.high, "bounds from {} to {}", a.low, a.high);
  if (a.scale.empty()) return;
  for (const Tensor* t : {&a.shift, &a.scale}) {
    expect_shape("shift, scale", *t, width);
    QUIRE_CHECK(t->dtype == DType::kF32, "shift, scale: f32 is required, not {}", dtype_name(t->dtype));
  }
}

template <auto Kernel>
void run(const OpContext& ctx, const ScaleClampArgs& a) {
  const bool scaled = !a.scale.empty();
  const scale_clamp_detail::Rows r{.x = a.x.data,
                                   .y = a.y.data,
                                   .shift = scaled ? a.shift.as<float>() : nullptr,
                                   .scale = scaled ? a.scale.as<float>() : nullptr,
                                   .low = a.low,
                                   .high = a.high,
                                   .x_bf16 = a.x.dtype == DType::kBF16,
                                   .y_bf16 = a.y.dtype == DType::kBF16,
                                   .x_stride = a.x.stride[0],
                                   .y_stride = a.y.stride[0],
                                   .width = a.x.dim(1)};
  ctx.pool.parallel_for(a.x.dim(0), kGrain, [&](int64_t begin, int64_t end, int) { Kernel(r, begin, end); });
}

// The same operations one by one: there is one order, and the bits are the same as those of vectors.
void reference(const OpContext& ctx, const ScaleClampArgs& a) {
  ctx.pool.parallel_for(a.x.dim(0), kGrain, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t)
      for (int64_t i = 0; i < a.x.dim(1); ++i) {
        float v = load_float(a.x, t * a.x.stride[0] + i);
        if (!a.scale.empty()) v = (v - a.shift.as<float>()[i]) * a.scale.as<float>()[i];
        if (v < a.low) v = a.low;
        if (v > a.high) v = a.high;
        store_float(a.y, t * a.y.stride[0] + i, v);
      }
  });
}

constexpr auto kKernels = joined(  //
    cuda_rows<ScaleClampArgs>({
        {"cuda", cuda::scale_clamp_fits, cuda::scale_clamp, GpuLevel::kMma, nullptr, cuda::kScaleClampTakes},
    }),
    x86_rows<ScaleClampArgs>({
        {"avx512", has_avx512<ScaleClampArgs>, run<scale_clamp_detail::rows_avx512>, CpuLevel::kAvx512},
    }),
    kernel_rows<ScaleClampArgs>({
        {kBaseLevel, fits_always<ScaleClampArgs>, run<scale_clamp_detail::rows_avx2>},
        {"reference", fits_always<ScaleClampArgs>, reference},
    }));

Traffic traffic_of(const ScaleClampArgs& a) {
  return {.bytes = a.x.bytes() + a.y.bytes() + a.shift.bytes() + a.scale.bytes(),
          .flops = a.x.elems() * (a.scale.empty() ? 2 : 4)};
}

std::string describe_args(const ScaleClampArgs& a) {
  return fmt::format("x {}, y {}, in [{}, {}]{}", describe(a.x), describe(a.y), a.low, a.high,
                     a.scale.empty() ? "" : ", scaled");
}

}  // namespace

constinit const Operator<ScaleClampArgs> kScaleClampOp{"scale_clamp", kKernels, traffic_of, describe_args};

void scale_clamp(const OpContext& ctx, const ScaleClampArgs& a) {
  check(a);
  dispatch(kScaleClampOp, ctx, a);
}

}  // namespace quire
