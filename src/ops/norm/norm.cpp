// The tables of kernels behind the norms, in order of preference.
#include "ops/norm/norm.h"

#include "ops/cuda/ops.h"
#include "ops/norm/check.h"
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

constexpr Kernel<AddRmsNormArgs> kAddRmsNorm[] = {
    {"avx512", [](const CpuFeatures& cpu, const AddRmsNormArgs&) { return cpu.avx512; },
     add_rms_norm_cpu<norm::add_rms_norm_avx512>, CpuLevel::kAvx512},
    {"avx2", [](const CpuFeatures& cpu, const AddRmsNormArgs&) { return cpu.avx2; },
     add_rms_norm_cpu<norm::add_rms_norm_avx2>},
    {"reference", [](const CpuFeatures&, const AddRmsNormArgs&) { return true; },
     norm::add_rms_norm_reference},
};
constexpr Kernel<GatedRmsNormArgs> kGatedRmsNorm[] = {
    {"avx512", [](const CpuFeatures& cpu, const GatedRmsNormArgs&) { return cpu.avx512; },
     gated_rms_norm_cpu<norm::gated_rms_norm_avx512>, CpuLevel::kAvx512},
    {"avx2", [](const CpuFeatures& cpu, const GatedRmsNormArgs&) { return cpu.avx2; },
     gated_rms_norm_cpu<norm::gated_rms_norm_avx2>},
    {"reference", [](const CpuFeatures&, const GatedRmsNormArgs&) { return true; },
     norm::gated_rms_norm_reference},
};

}  // namespace

std::span<const Kernel<AddRmsNormArgs>> add_rms_norm_kernels() {
  return kAddRmsNorm;
}
std::span<const Kernel<GatedRmsNormArgs>> gated_rms_norm_kernels() {
  return kGatedRmsNorm;
}

void add_rms_norm(const OpContext& ctx, const AddRmsNormArgs& a) {
  if (ctx.device == Device::kCuda) return cuda::add_rms_norm(ctx, a);
  dispatch("add_rms_norm", add_rms_norm_kernels(), ctx, a);
}
void gated_rms_norm(const OpContext& ctx, const GatedRmsNormArgs& a) {
  if (ctx.device == Device::kCuda) return cuda::gated_rms_norm(ctx, a);
  dispatch("gated_rms_norm", gated_rms_norm_kernels(), ctx, a);
}

}  // namespace quire
