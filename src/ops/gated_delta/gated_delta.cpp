// The tables of kernels behind the gated-delta-net operators, in order of preference.
#include "ops/gated_delta/gated_delta.h"

#include "ops/gated_delta/launch.h"

namespace quire {
namespace {

constexpr Kernel<GdnPrepareArgs> kPrepare[] = {
    {"avx512",
     [](const CpuFeatures& cpu, const GdnPrepareArgs& a) { return cpu.avx512 && gdn::prepare_fits(a); },
     gdn::prepare_cpu<gdn::prepare_avx512>, CpuLevel::kAvx512},
    {"avx2", [](const CpuFeatures& cpu, const GdnPrepareArgs& a) { return cpu.avx2 && gdn::prepare_fits(a); },
     gdn::prepare_cpu<gdn::prepare_avx2>},
    {"reference", [](const CpuFeatures&, const GdnPrepareArgs&) { return true; }, gdn::prepare_reference},
};
constexpr Kernel<GatedDeltaArgs> kChunked[] = {
    {"amx",
     [](const CpuFeatures& cpu, const GatedDeltaArgs& a) {
       return cpu.amx_bf16 && a.q.dtype == DType::kBF16 && gdn::chunked_fits(a, 32);
     },
     gdn::chunked_cpu<gdn::chunked_amx, gdn::chunked_scratch_amx>, CpuLevel::kAmx},
    {"avx512",
     [](const CpuFeatures& cpu, const GatedDeltaArgs& a) { return cpu.avx512 && gdn::chunked_fits(a, 16); },
     gdn::chunked_cpu<gdn::chunked_avx512, gdn::chunked_scratch_f32>, CpuLevel::kAvx512},
    {"avx2",
     [](const CpuFeatures& cpu, const GatedDeltaArgs& a) { return cpu.avx2 && gdn::chunked_fits(a, 8); },
     gdn::chunked_cpu<gdn::chunked_avx2, gdn::chunked_scratch_f32>},
    {"reference", [](const CpuFeatures&, const GatedDeltaArgs&) { return true; }, gdn::chunked_reference},
};
constexpr Kernel<GatedDeltaArgs> kRecurrent[] = {
    {"avx512",
     [](const CpuFeatures& cpu, const GatedDeltaArgs& a) { return cpu.avx512 && gdn::recurrent_fits(a, 16); },
     gdn::recurrent_cpu<gdn::recurrent_avx512>, CpuLevel::kAvx512},
    {"avx2",
     [](const CpuFeatures& cpu, const GatedDeltaArgs& a) { return cpu.avx2 && gdn::recurrent_fits(a, 8); },
     gdn::recurrent_cpu<gdn::recurrent_avx2>},
    {"reference", [](const CpuFeatures&, const GatedDeltaArgs&) { return true; }, gdn::recurrent_reference},
};

}  // namespace

std::span<const Kernel<GdnPrepareArgs>> gdn_prepare_kernels() {
  return kPrepare;
}
std::span<const Kernel<GatedDeltaArgs>> gdn_chunked_kernels() {
  return kChunked;
}
std::span<const Kernel<GatedDeltaArgs>> gdn_recurrent_kernels() {
  return kRecurrent;
}

void gdn_prepare(const OpContext& ctx, const GdnPrepareArgs& a) {
  dispatch("gdn_prepare", gdn_prepare_kernels(), ctx, a);
}
void gdn_chunked(const OpContext& ctx, const GatedDeltaArgs& a) {
  dispatch("gdn_chunked", gdn_chunked_kernels(), ctx, a);
}
void gdn_recurrent(const OpContext& ctx, const GatedDeltaArgs& a) {
  dispatch("gdn_recurrent", gdn_recurrent_kernels(), ctx, a);
}

}  // namespace quire
