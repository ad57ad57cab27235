#include "ops/forced.h"

#include <fmt/format.h>

#include "core/log.h"

namespace quire {

ForcedCounts::ForcedCounts(const KernelChoice& choice) {
  for (const auto& [op, kernel] : choice.forced) counts_.push_back({op, kernel});
}

void ForcedCounts::ran(std::string_view op) {
  for (ForcedCount& c : counts_)
    if (c.op == op) ++c.ran;
}

void ForcedCounts::replaced(std::string_view op) {
  for (ForcedCount& c : counts_)
    if (c.op == op && c.replaced++ == 0)
      log_warning(
          fmt::format("{} is forced to {}, which does not take all calls: others run another kernel", c.op, c.kernel));
}

}  // namespace quire
