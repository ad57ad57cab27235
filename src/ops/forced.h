// Kernels forced by name, and what became of them: nobody should take for a kernel's result what another one
// computed.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace quire {

// `--kernel op=name`: forces one operator to one kernel, to bisect a difference. check_forced (ops/registry.h)
// says whether there is such a kernel and this CPU has what it needs.
struct KernelChoice {
  std::vector<std::pair<std::string, std::string>> forced;  // (operator, kernel)
  std::string_view find(std::string_view op) const {
    for (const auto& [o, k] : forced)
      if (o == op) return k;
    return {};
  }
};

// Calls of one forced operator.
struct ForcedCount {
  std::string op, kernel;
  int64_t ran = 0;       // by the kernel that was asked for
  int64_t replaced = 0;  // by another: it does not take their shapes or types
};

// Counts them, for one thread at a time. The first call of an operator that another kernel takes is also
// logged as a warning: a run may be long, and a report at its end late.
class ForcedCounts {
 public:
  explicit ForcedCounts(const KernelChoice& choice);

  void ran(std::string_view op);
  void replaced(std::string_view op);
  std::span<const ForcedCount> all() const { return counts_; }  // as the choice lists them

 private:
  std::vector<ForcedCount> counts_;
};

}  // namespace quire
