// The tables of kernels behind the norms, in order of preference.
#include "ops/norm/norm.h"

#include "ops/norm/check.h"

namespace quire {
namespace {

constexpr Kernel<AddRmsNormArgs> kAddRmsNorm[] = {
    {"reference", [](const CpuFeatures&, const AddRmsNormArgs&) { return true; },
     norm::add_rms_norm_reference},
};
constexpr Kernel<GatedRmsNormArgs> kGatedRmsNorm[] = {
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
  dispatch("add_rms_norm", add_rms_norm_kernels(), ctx, a);
}
void gated_rms_norm(const OpContext& ctx, const GatedRmsNormArgs& a) {
  dispatch("gated_rms_norm", gated_rms_norm_kernels(), ctx, a);
}

}  // namespace quire
