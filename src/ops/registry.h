// Every operator by name, for options that choose a kernel, for tests and for reports.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "ops/op.h"

namespace quire {
namespace conformance {
class Suite;
}

struct KernelInfo {
  std::string_view name;
  Needs needs = CpuLevel::kBase;
};

// What Operator<Args> says, whatever its arguments are.
struct OperatorInfo {
  std::string_view name;
  std::vector<KernelInfo> kernels;  // of all devices, in order of preference, the reference last
  void (*conformance)(conformance::Suite&);
};

// In the order of docs/architecture.md.
std::span<const OperatorInfo> operators();
// "embed, gather_rows, ...", for messages.
std::string operator_names();

// Empty for an unknown operator.
std::span<const KernelInfo> kernels_of(std::string_view op);

// A request error where a name is unknown (it lists what there is), an operator is forced twice, or the machine
// lacks what a kernel needs. Whether a kernel takes the shapes and types of a call shows only then: ForcedCounts. Of a
// GPU that nobody has looked at yet (Machine::gpu of nothing), only what is no kernel for any GPU is refused.
Status check_forced(const KernelChoice& choice, const Machine& m);

}  // namespace quire
