// The tables of kernels behind the norms, in order of preference.
#include "ops/norm/norm.h"

#include "ops/kernel_table.h"
#include "ops/norm/check.h"
#include "ops/norm/cuda/kernels.h"
#include "ops/norm/kernels.h"

namespace quire {
namespace {

// Rows per piece of work: a few microseconds, so that handing out costs little.
constexpr int64_t kGrain = 8;

template <auto Rows>
void add_rms_norm_cpu(const OpContext& ctx, const AddRmsNormArgs& a) {
  const norm::AddRmsNormSizes n = norm::check(a);
  const norm::AddRmsNormRows r{.x = a.x.as<float>(),
                               .add = a.add.data,
                               .weight = a.weight.as<float>(),
                               .h = a.h.data,
                               .add_bf16 = a.add.dtype == DType::kBF16,
                               .h_bf16 = a.h.dtype == DType::kBF16,
                               .x_stride = a.x.stride[0],
                               .add_stride = a.add.stride[0],
                               .h_stride = a.h.stride[0],
                               .D = n.D,
                               .eps = a.eps};
  ctx.pool.parallel_for(n.T, kGrain, [&](int64_t begin, int64_t end, int) { Rows(r, begin, end); });
}

template <auto Rows>
void gated_rms_norm_cpu(const OpContext& ctx, const GatedRmsNormArgs& a) {
  const norm::GatedRmsNormSizes n = norm::check(a);
  const norm::GatedRmsNormRows r{.o = a.o.data,
                                 .z = a.z.data,
                                 .weight = a.weight.as<float>(),
                                 .y = a.y.data,
                                 .bf16 = a.o.dtype == DType::kBF16,
                                 .o_stride = a.o.stride[0],
                                 .z_stride = a.z.stride[0],
                                 .y_stride = a.y.stride[0],
                                 .Hv = n.Hv,
                                 .Dv = n.Dv,
                                 .eps = a.eps};
  ctx.pool.parallel_for(n.T, kGrain, [&](int64_t begin, int64_t end, int) { Rows(r, begin, end); });
}

constexpr auto kAddRmsNorm = joined(  //
    cuda_rows<AddRmsNormArgs>({
        {"cuda", cuda::add_rms_norm_fits, cuda::add_rms_norm, GpuLevel::kMma, nullptr, cuda::kAddRmsNormTakes},
    }),
    x86_rows<AddRmsNormArgs>({
        {"avx512", has_avx512<AddRmsNormArgs>, add_rms_norm_cpu<norm::add_rms_norm_avx512>, CpuLevel::kAvx512},
    }),
    kernel_rows<AddRmsNormArgs>({
        {kBaseLevel, fits_always<AddRmsNormArgs>, add_rms_norm_cpu<norm::add_rms_norm_avx2>},
        {"reference", fits_always<AddRmsNormArgs>, norm::add_rms_norm_reference},
    }));
constexpr auto kGatedRmsNorm = joined(  //
    cuda_rows<GatedRmsNormArgs>({
        {"cuda", cuda::gated_rms_norm_fits, cuda::gated_rms_norm, GpuLevel::kMma, nullptr, cuda::kGatedRmsNormTakes},
    }),
    x86_rows<GatedRmsNormArgs>({
        {"avx512", has_avx512<GatedRmsNormArgs>, gated_rms_norm_cpu<norm::gated_rms_norm_avx512>, CpuLevel::kAvx512},
    }),
    kernel_rows<GatedRmsNormArgs>({
        {kBaseLevel, fits_always<GatedRmsNormArgs>, gated_rms_norm_cpu<norm::gated_rms_norm_avx2>},
        {"reference", fits_always<GatedRmsNormArgs>, norm::gated_rms_norm_reference},
    }));

Traffic traffic_of(const AddRmsNormArgs& a) {
  const bool adds = !a.add.empty();
  return {.bytes = a.x.bytes() * (adds ? 2 : 1) + a.add.bytes() + a.weight.bytes() + a.h.bytes(),
          .flops = a.x.elems() * (adds ? 5 : 4)};
}

Traffic traffic_of(const GatedRmsNormArgs& a) {
  return {.bytes = a.o.bytes() + a.z.bytes() + a.weight.bytes() + a.y.bytes(), .flops = a.o.elems() * (5 + kSiluFlops)};
}

std::string describe_args(const AddRmsNormArgs& a) {
  return fmt::format("x {}, add {}, h {}", describe(a.x), describe(a.add), describe(a.h));
}
std::string describe_args(const GatedRmsNormArgs& a) {
  return fmt::format("o {}", describe(a.o));
}

}  // namespace

constinit const Operator<AddRmsNormArgs> kAddRmsNormOp{"add_rms_norm", kAddRmsNorm, traffic_of, describe_args};
constinit const Operator<GatedRmsNormArgs> kGatedRmsNormOp{"gated_rms_norm", kGatedRmsNorm, traffic_of, describe_args};

void add_rms_norm(const OpContext& ctx, const AddRmsNormArgs& a) {
  dispatch(kAddRmsNormOp, ctx, a);
}
void gated_rms_norm(const OpContext& ctx, const GatedRmsNormArgs& a) {
  dispatch(kGatedRmsNormOp, ctx, a);
}

}  // namespace quire
