// mix_rows: its checks, its reference, and the table of its kernels.
#include "ops/mix_rows/mix_rows.h"

#include <cmath>

#include "ops/kernel_table.h"
#include "ops/mix_rows/cuda/kernels.h"
#include "ops/mix_rows/kernels.h"

namespace quire {
namespace {

constexpr int64_t kGrain = 8;  // rows per piece of work

void check(const MixRowsArgs& a) {
  Dim rows{"T"}, count{"K"}, table{"N"}, width{"D"};
  expect_shape("rows", a.rows, rows, count);
  expect_shape("weights", a.weights, rows, count);
  expect_shape("table", a.table, table, width);
  expect_shape("x", a.x, rows, width);
  QUIRE_CHECK(count >= 1 && count <= MixRowsArgs::kMost, "K = {} is not between 1 and {}", count.value,
              MixRowsArgs::kMost);
  QUIRE_CHECK(a.rows.dtype == DType::kI32 && a.rows.stride[1] == 1, "rows: must be i32, those of a sum contiguous");
  for (const Tensor* t : {&a.weights, &a.table, &a.x})
    QUIRE_CHECK(t->dtype == DType::kF32 && t->stride[1] == 1, "weights, table, x: must be f32 with contiguous rows");
}

template <auto Kernel>
void run(const OpContext& ctx, const MixRowsArgs& a) {
  check(a);
  const mix_rows_detail::Rows r{.rows = a.rows.as<int32_t>(),
                                .weights = a.weights.as<float>(),
                                .table = a.table.as<float>(),
                                .x = a.x.as<float>(),
                                .rows_stride = a.rows.stride[0],
                                .weights_stride = a.weights.stride[0],
                                .table_stride = a.table.stride[0],
                                .x_stride = a.x.stride[0],
                                .count = a.rows.dim(1),
                                .width = a.x.dim(1),
                                .add_to_x = a.add_to_x};
  ctx.pool.parallel_for(a.x.dim(0), kGrain, [&](int64_t begin, int64_t end, int) { Kernel(r, begin, end); });
}

// The same operations one by one: there is one order, and the bits are the same as those of vectors.
void reference(const OpContext& ctx, const MixRowsArgs& a) {
  check(a);
  ctx.pool.parallel_for(a.x.dim(0), kGrain, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      const int32_t* const rows = a.rows.row<int32_t>(t);
      const float* const weights = a.weights.row<float>(t);
      float* const x = a.x.row<float>(t);
      for (int64_t i = 0; i < a.x.dim(1); ++i) {
        float sum = weights[0] * a.table.row<float>(rows[0])[i];
        for (int64_t k = 1; k < a.rows.dim(1); ++k) sum = std::fma(weights[k], a.table.row<float>(rows[k])[i], sum);
        x[i] = a.add_to_x ? x[i] + sum : sum;
      }
    }
  });
}

constexpr auto kKernels = joined(  //
    cuda_rows<MixRowsArgs>({
        {"cuda", cuda::mix_rows_fits, cuda::mix_rows, GpuLevel::kMma, nullptr, cuda::kMixRowsTakes},
    }),
    x86_rows<MixRowsArgs>({
        {"avx512", has_avx512<MixRowsArgs>, run<mix_rows_detail::rows_avx512>, CpuLevel::kAvx512},
    }),
    kernel_rows<MixRowsArgs>({
        {kBaseLevel, fits_always<MixRowsArgs>, run<mix_rows_detail::rows_avx2>},
        {"reference", fits_always<MixRowsArgs>, reference},
    }));

// Of the table, as many rows as are named, or all of it if those are more.
Traffic traffic_of(const MixRowsArgs& a) {
  const int64_t read = std::min(a.rows.elems(), a.table.dim(0));
  return {.bytes = a.rows.bytes() + a.weights.bytes() + dtype_bytes(DType::kF32, read * a.table.dim(1)) +
                   a.x.bytes() * (a.add_to_x ? 2 : 1),
          .flops = a.x.elems() * (2 * a.rows.dim(1) + (a.add_to_x ? 1 : 0))};
}

std::string describe_args(const MixRowsArgs& a) {
  return fmt::format("{} rows of table {}, x {}", a.rows.dim(1), describe(a.table), describe(a.x));
}

}  // namespace

constinit const Operator<MixRowsArgs> kMixRowsOp{"mix_rows", kKernels, traffic_of, describe_args};

void mix_rows(const OpContext& ctx, const MixRowsArgs& a) {
  dispatch(kMixRowsOp, ctx, a);
}

}  // namespace quire
