#include "ops/all_reduce/all_reduce.h"

#include <algorithm>

#include "ops/all_reduce/cuda/kernels.h"
#include "ops/all_reduce/kernels.h"
#include "ops/all_reduce/meet.h"
#include "ops/kernel_table.h"
#include "ops/norm/check.h"
#include "ops/norm/kernels.h"

namespace quire {
namespace {

// A few microseconds of work.
constexpr int64_t kPieceElems = 16384;

// In float32 like the kernels, since the order of additions is the contract; the norm in float64.
void reference(const OpContext& ctx, const AllReduceArgs& a) {
  for (int64_t t = 0; t < a.x.dim(0); ++t)
    for (int64_t d = 0; d < a.x.dim(1); ++d) {
      const auto partial = [&](int32_t r) {
        const Tensor& p = a.partials[static_cast<size_t>(r)];
        return load_float(p, t * p.stride[0] + d);
      };
      float sum = partial(0);
      for (int32_t r = 1; r < a.count; ++r) sum += partial(r);
      float& x = a.x.row<float>(t)[d];
      x = a.add_to_x ? x + sum : sum;
    }
  if (!a.h.empty())
    norm::add_rms_norm_reference(ctx, {.x = a.x, .add = {}, .weight = a.weight, .eps = a.eps, .h = a.h});
}

template <auto Sum, auto Norm>
void cpu(const OpContext& ctx, const AllReduceArgs& a) {
  const Tensor& first = a.partials[0];
  all_reduce_detail::RankRows r{.partials = {},
                                .count = a.count,
                                .bf16 = first.dtype == DType::kBF16,
                                .stride = first.stride[0],
                                .x = a.x.as<float>(),
                                .x_stride = a.x.stride[0],
                                .width = a.x.dim(1),
                                .add_to_x = a.add_to_x};
  for (int32_t i = 0; i < a.count; ++i) r.partials[i] = a.partials[static_cast<size_t>(i)].data;
  const bool normed = !a.h.empty();
  const norm::AddRmsNormRows n{.x = r.x,
                               .add = nullptr,
                               .weight = normed ? a.weight.as<float>() : nullptr,
                               .h = a.h.data,
                               .add_bf16 = false,
                               .h_bf16 = a.h.dtype == DType::kBF16,
                               .x_stride = r.x_stride,
                               .add_stride = 0,
                               .h_stride = a.h.stride[0],
                               .D = r.width,
                               .eps = a.eps};
  const int64_t row_elems = std::max<int64_t>(1, (r.count + 1) * r.width);
  ctx.pool.parallel_for(a.x.dim(0), std::max<int64_t>(1, kPieceElems / row_elems),
                        [&](int64_t begin, int64_t end, int) {
                          Sum(r, begin, end);
                          if (normed) Norm(n, begin, end);
                        });
}

constexpr auto kKernels = joined(  //
    cuda_rows<AllReduceArgs>({
        {"cuda", cuda::all_reduce_fits, cuda::all_reduce, GpuLevel::kMma, nullptr, cuda::kAllReduceTakes},
    }),
    x86_rows<AllReduceArgs>({
        {"avx512", has_avx512<AllReduceArgs>, cpu<all_reduce_detail::sum_avx512, norm::add_rms_norm_avx512>,
         CpuLevel::kAvx512},
    }),
    kernel_rows<AllReduceArgs>({
        {kBaseLevel, fits_always<AllReduceArgs>, cpu<all_reduce_detail::sum_avx2, norm::add_rms_norm_avx2>},
        {"reference", fits_always<AllReduceArgs>, reference},
    }));

Traffic traffic_of(const AllReduceArgs& a) {
  const Tensor& p = a.partials[static_cast<size_t>(a.own())];
  return {.bytes = a.count * p.bytes() + a.x.bytes() * (a.add_to_x ? 2 : 1) + a.weight.bytes() + a.h.bytes(),
          .flops = a.x.elems() * (a.count - (a.add_to_x ? 0 : 1) + (a.h.empty() ? 0 : 4))};
}

std::string describe_args(const AllReduceArgs& a) {
  return fmt::format("{} partials {}, x {}, h {}", a.count, describe(a.partials[static_cast<size_t>(a.own())]),
                     describe(a.x), describe(a.h));
}

void check(const AllReduceArgs& a) {
  QUIRE_CHECK(a.count >= 1 && a.count <= RankLink::kMost && (a.link == nullptr || a.link->of() == a.count),
              "all_reduce: {} ranks, 1 to {} are possible", a.count, RankLink::kMost);
  Dim T{"T"}, D{"D"};
  expect_shape("x", a.x, T, D);
  const Tensor& own = a.partials[static_cast<size_t>(a.own())];
  for (int32_t r = 0; r < a.count; ++r) {
    const Tensor& p = a.partials[static_cast<size_t>(r)];
    if (a.link != nullptr && r != a.link->rank()) continue;
    expect_shape("partial", p, T, D);
    QUIRE_CHECK(p.dtype == own.dtype && p.stride[0] == own.stride[0], "all_reduce: partials are not alike");
  }
  QUIRE_CHECK(a.x.dtype == DType::kF32 && (own.dtype == DType::kF32 || own.dtype == DType::kBF16),
              "all_reduce: x is {} and partials are {}", dtype_name(a.x.dtype), dtype_name(own.dtype));
  QUIRE_CHECK(a.weight.empty() == a.h.empty(), "all_reduce: one of weight and h is missing");
  if (!a.h.empty()) norm::check({.x = a.x, .add = {}, .weight = a.weight, .eps = a.eps, .h = a.h});
}

}  // namespace

constinit const Operator<AllReduceArgs> kAllReduceOp{"all_reduce", kKernels, traffic_of, describe_args};

void all_reduce(const OpContext& ctx, const AllReduceArgs& a) {
  check(a);
  if (a.x.dim(0) == 0) return;
  AllReduceArgs seen = a;
  if (a.link != nullptr) {
    const auto own = static_cast<size_t>(a.own());
    const RankLink::Places places = meet(ctx, *a.link, a.partials[own].bytes_at(0));
    for (size_t r = 0; r < static_cast<size_t>(a.count); ++r)
      seen.partials[r] = a.partials[own], seen.partials[r].data = places[r];
  }
  dispatch(kAllReduceOp, ctx, seen);
}

}  // namespace quire
