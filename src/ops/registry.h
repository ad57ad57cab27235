// The operators and their kernels by name, for options that choose one and for reports.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "ops/op.h"

namespace quire {

struct KernelInfo {
  std::string_view name;
  CpuLevel needs = CpuLevel::kAvx2;
};

// In order of preference; empty for an unknown operator.
std::vector<KernelInfo> kernels_of(std::string_view op);

// A request error where a name is unknown (it lists what there is), an operator is forced twice, or the CPU
// lacks what a kernel needs. Whether a kernel takes the shapes and types of a call shows only then:
// ForcedCounts.
Status check_forced(const KernelChoice& choice, const CpuFeatures& cpu);

}  // namespace quire
