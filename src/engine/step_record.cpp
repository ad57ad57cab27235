#include "engine/step_record.h"

namespace quire {

std::string_view deferral_name(Deferral d) {
  constexpr std::string_view kNames[kDeferrals] = {"shared_prefix", "penalty_history", "host_moves", "pictures",
                                                   "running",       "places",          "blocks",     "budget"};
  return kNames[static_cast<size_t>(d)];
}

}  // namespace quire
