// reduce_partials: its checks, its reference, and its table of kernels.
#include "ops/rows/reduce.h"

#include <algorithm>

#include "ops/kernel_table.h"
#include "ops/rows/cuda/kernels.h"
#include "ops/rows/rows.h"

namespace quire {
namespace {

// A few microseconds of work.
constexpr int64_t kPieceElems = 16384;

// In float32 like the kernels, since the order of additions is the contract.
void reference(const OpContext&, const ReducePartialsArgs& a) {
  for (int64_t t = 0; t < a.x.dim(0); ++t)
    for (int64_t d = 0; d < a.x.dim(1); ++d) {
      const auto partial = [&](int64_t p) { return a.partials.row<float>(p)[t * a.partials.stride[1] + d]; };
      float sum = partial(0);
      for (int64_t p = 1; p < a.partials.dim(0); ++p) sum += partial(p);
      float& x = a.x.row<float>(t)[d];
      x = (a.add_to_x ? x + sum : sum) * a.scale;
      if (!a.h.empty()) store_float(a.h, t * a.h.stride[0] + d, x);
    }
}

template <auto Rows>
void cpu(const OpContext& ctx, const ReducePartialsArgs& a) {
  const rows::PartialRows r{.partials = a.partials.as<float>(),
                            .count = a.partials.dim(0),
                            .partial_stride = a.partials.stride[0],
                            .row_stride = a.partials.stride[1],
                            .x = a.x.as<float>(),
                            .x_stride = a.x.stride[0],
                            .width = a.x.dim(1),
                            .add_to_x = a.add_to_x,
                            .scale = a.scale,
                            .h = a.h.data,
                            .h_stride = a.h.stride[0],
                            .h_bf16 = a.h.dtype == DType::kBF16};
  const int64_t row_elems = std::max<int64_t>(1, r.count * r.width);
  ctx.pool.parallel_for(a.x.dim(0), std::max<int64_t>(1, kPieceElems / row_elems),
                        [&](int64_t begin, int64_t end, int) { Rows(r, begin, end); });
}

constexpr auto kKernels = joined(  //
    cuda_rows<ReducePartialsArgs>({
        {"cuda", fits_always<ReducePartialsArgs>, cuda::reduce_partials, GpuLevel::kMma},
    }),
    x86_rows<ReducePartialsArgs>({
        {"avx512", has_avx512<ReducePartialsArgs>, cpu<rows::reduce_avx512>, CpuLevel::kAvx512},
    }),
    kernel_rows<ReducePartialsArgs>({
        {kBaseLevel, fits_always<ReducePartialsArgs>, cpu<rows::reduce_avx2>},
        {"reference", fits_always<ReducePartialsArgs>, reference},
    }));

Traffic traffic_of(const ReducePartialsArgs& a) {
  return {.bytes = a.partials.bytes() + a.x.bytes() * (a.add_to_x ? 2 : 1) + a.h.bytes(),
          .flops = a.x.elems() * (a.partials.dim(0) - (a.add_to_x ? 0 : 1) + (a.scale == 1.0f ? 0 : 1))};
}

std::string describe_args(const ReducePartialsArgs& a) {
  return fmt::format("partials {}, x {}{}{}", describe(a.partials), describe(a.x), a.scale == 1.0f ? "" : ", scaled",
                     a.h.empty() ? "" : fmt::format(", h {}", describe(a.h)));
}

}  // namespace

constinit const Operator<ReducePartialsArgs> kReducePartialsOp{"reduce_partials", kKernels, traffic_of, describe_args};

void reduce_partials(const OpContext& ctx, const ReducePartialsArgs& a) {
  Dim P{"P"}, T{"T"}, D{"D"};
  expect_shape("partials", a.partials, P, T, D);
  expect_shape("x", a.x, T, D);
  QUIRE_CHECK(P >= 1 && P <= ReducePartialsArgs::kMost, "{} partial results, 1 to {} are possible", P.value,
              ReducePartialsArgs::kMost);
  QUIRE_CHECK(a.partials.dtype == DType::kF32 && a.x.dtype == DType::kF32,
              "partials are {} and x is {}, but both are f32", dtype_name(a.partials.dtype), dtype_name(a.x.dtype));
  if (!a.h.empty()) {
    expect_shape("h", a.h, T, D);
    QUIRE_CHECK(a.h.dtype == DType::kF32 || a.h.dtype == DType::kBF16, "h is {}, not f32 or bf16",
                dtype_name(a.h.dtype));
  }
  if (T == 0) return;
  dispatch(kReducePartialsOp, ctx, a);
}

}  // namespace quire
